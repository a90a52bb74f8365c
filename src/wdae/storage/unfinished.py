"""Unfinished work: a hidden folder beside the output until the output is there.

One scheme for every command that can go on where it was stopped and whose output appears whole at its end.
The folder belongs to one process at a time; a second one is told so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wdae.errors import StorageError
from wdae.storage.files import refuse_existing, refuse_links
from wdae.storage.lock import NAME, alone


def unfinished(output: Path) -> Path:
    """The folder beside an output to be; hidden, or among folders of pictures it would pass for a class.

    >>> unfinished(Path("models/birds")).name
    '.birds.unfinished'
    """
    return output.with_name(f".{output.name}.unfinished")


@contextmanager
def working(output: Path) -> Iterator[Path]:
    """The folder of the work on ``output``, which must not exist yet; held while the body runs.

    When the body ends well the folder goes; however else it ends, what is in it stays, if anything is.
    """
    output = output.absolute()
    folder = unfinished(output)
    refuse_existing(output)
    old = output.with_name(f"{output.name}.unfinished")  # the name it had in earlier versions
    if (old / "plan.json").is_file() and not folder.exists():
        try:
            old.rename(folder)
        except OSError as error:
            raise StorageError(f"cannot go on from {old}: {error.strerror or error}") from error
    with alone(folder, patience=0, make=True):
        try:
            refuse_existing(output)  # another process may have finished it meanwhile
            refuse_links(folder)
            yield folder
        except BaseException:
            if is_empty(folder):
                remove(folder)
            raise
        remove(folder)


def is_empty(folder: Path) -> bool:
    """Whether nothing is there to go on from."""
    return not folder.is_dir() or all(file.name == NAME for file in folder.iterdir())


def empty(folder: Path) -> None:
    """Remove all but the lock."""
    for file in folder.iterdir():
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        elif file.name != NAME:
            file.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove the folder, its lock included."""
    shutil.rmtree(folder, ignore_errors=True)
