"""The systems that wDAE is compared with, one file each."""
