"""One writer at a time: others wait, and are told when they wait too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from wdae.errors import StorageError

NAME = ".lock"
PATIENCE = 60.0
_PAUSE = 0.02


@contextmanager
def alone(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a folder's lock; it dies with the process that holds it, however that ends.

    Args:
        patience: seconds to wait for another process before giving up with an error.
    """
    path = folder / NAME
    try:
        file = path.open("a+b")
    except OSError as error:
        raise StorageError(f"cannot change {folder}: {error.strerror or error}") from error
    with file:
        until = time.monotonic() + patience
        while not _take(file):
            if time.monotonic() >= until:
                raise StorageError(
                    f"another process is changing {folder}, and did not finish in {patience:g} seconds;"
                    " nothing was changed, try again later"
                )
            time.sleep(_PAUSE)
        yield


def _take(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: the first byte of the file is the lock
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
