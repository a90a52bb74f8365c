"""How the C library's allocator treats freed memory."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30


def keep_freed_memory() -> bool:
    """Let the process keep freed memory (up to 1 GiB) for its next tensors; True if the setting took.

    On Linux, tensors of some megabytes are by default handed back to the system when freed and cleared
    page by page when made again, which costs more than most operations on them: evaluation on a CPU gains
    about a third. It concerns the whole process, so the command line sets it and the library leaves it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP)) and bool(mallopt(_M_MMAP_THRESHOLD, _KEEP))
