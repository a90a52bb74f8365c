"""The process: the cores it may use, and settings that are made before torch is loaded."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_KEPT_BYTES = 1 << 30
_KEEP = ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _KEPT_BYTES))
_KEEP_ALL = ((_M_TRIM_THRESHOLD, 2**31 - 1), (_M_MMAP_MAX, 0), (_M_ARENA_MAX, 1))
# Read by GNU OpenMP, the library behind torch's threads, when it is loaded.
SHORT_WAIT = {"GOMP_SPINCOUNT": "10000"}


def keep_freed_memory(*, all_of_it: bool = False) -> bool:
    """Let the process keep up to 1 GiB of freed memory for its next tensors; True if the setting took.

    By default Linux takes tensors of some megabytes back when they are freed and clears the pages when they
    are made again. The library leaves this setting alone.

    Args:
        all_of_it: keep whatever it ever had, for a process that does the same work over and over.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(option, value) for option, value in (_KEEP_ALL if all_of_it else _KEEP))


def shorten_thread_waits() -> None:
    """Let idle threads sleep after about 0.1 ms; call it before torch is imported.

    By default they keep a core busy for milliseconds after each operation, and other work lacks that core.
    A value that the user has set stays.
    """
    for name, value in SHORT_WAIT.items():
        os.environ.setdefault(name, value)


def available_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
