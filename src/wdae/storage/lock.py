"""One writer at a time: others wait, and are told when they wait too long."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wdae.errors import StorageError
from wdae.storage.files import make_folder

NAME = ".lock"
PATIENCE = 60.0
_PAUSE = 0.02


@contextmanager
def alone(
    folder: Path, patience: float = PATIENCE, *, name: str = NAME, make: bool = False
) -> Iterator[None]:
    """Hold a folder's lock; it dies with the process that holds it, however that ends.

    Args:
        patience: seconds to wait for another process before giving up with an error.
        name: the lock's file, where a folder has several.
        make: make the folder where there is none.
    """
    descriptor = _lock(folder, patience, name, make)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, patience: float, name: str, make: bool) -> int:
    """The open file of the lock, once it is ours."""
    until = time.monotonic() + patience
    while True:
        descriptor = _open(folder, name, make)
        if _take(descriptor):
            if _is_current(descriptor, folder / name):
                return descriptor
            os.close(descriptor)  # who held it has removed it: there is a new one to take
            continue
        os.close(descriptor)
        if time.monotonic() >= until:
            waited = f", and did not finish in {patience:g} seconds" if patience else ""
            raise StorageError(
                f"another process is changing {folder}{waited}; nothing was changed, try again later"
            )
        time.sleep(_PAUSE)


def _open(folder: Path, name: str, make: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        if make:
            make_folder(folder)
        descriptor = os.open(folder / name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        raise StorageError(f"cannot change {folder}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"cannot change {folder}: {name} there is not a regular file; remove it")
    return descriptor


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the lock's file is still the one at its path: a holder may have removed the folder."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    return False


def _take(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: the first byte of the file is the lock
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
