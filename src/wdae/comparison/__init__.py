"""Many methods on one bank and the same episodes: ``wdae compare``."""
