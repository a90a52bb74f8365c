"""Files that are either the old or the new one, whole: a temporary name, a flush, then a rename.

Nothing is ever written through a link. What a killed process left behind is removed by the next writer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from wdae.errors import StorageError

MAX_LINE = 2**24
"""Letters of one line of text: a row of half a million features."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_LEFT = re.compile(
    rf"^\.(?P<target>.+)\.(?:{_HOST}-(?P<owner>\d+)-[0-9a-f]{{8}}\.(?P<kind>tmp|replaced)|replaced-(?P<old>\d+))$"
)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there takes the place of ``path`` when the body ends.

    On any exception, and when the disk is full, the temporary file is removed and the old file survives.
    The path lies in a hidden folder beside the target, so that its suffix is kept for libraries that go by
    it. A link, a folder or a device at ``path`` is refused.
    """
    target = Path(path).absolute()
    folder = None
    try:
        make_folder(target.parent)
        _refuse_irregular(target)
        folder = _beside(target, "tmp")
        folder.mkdir()
        temporary = folder / target.name
        yield temporary
        _refuse_irregular(target)
        if not temporary.is_file():
            raise StorageError(f"nothing was written for {target}")
        _flush(temporary)
        temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling folder that becomes ``path`` when the body ends.

    Args:
        replace: a folder that is there already gives way to the new one, once that is whole; without,
            nothing may be there yet.
    """
    target = Path(path).absolute()
    if not replace:
        refuse_existing(path)
    temporary = None
    try:
        make_folder(target.parent)
        temporary = _beside(target, "tmp")
        temporary.mkdir()
        yield temporary
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                _flush(Path(folder, name))
            _flush_folder(Path(folder))
        if replace and target.is_dir() and not target.is_symlink():
            _exchange(temporary, target)
        elif os.path.lexists(target):  # a rename would quietly replace an empty folder
            raise StorageError(f"{target} appeared while it was being written; choose another name")
        else:
            temporary.rename(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: str | Path) -> None:
    """Raise where something is at ``path`` already: to be told before the work, not after it."""
    if os.path.lexists(path):
        raise StorageError(f"{path} exists already; remove it or choose another name")


def make_folder(path: Path) -> None:
    """Make a folder and its parents, each on disk before anything is put into it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that are dead left in ``folder``.

    A folder that had been moved aside for one that never came is put back.
    """
    for left in folder.iterdir():
        match = _LEFT.match(left.name)
        if match is None or _alive(int(match["owner"] or match["old"])):
            continue
        target = folder / match["target"]
        if match["kind"] != "tmp" and not os.path.lexists(target):
            with suppress(OSError):
                left.rename(target)
        shutil.rmtree(left, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically and with its line ends as they are."""
    write_bytes(path, text.encode())


def append_text(path: str | Path, text: str) -> None:
    """Add ``text`` to the end of a file, which is made where there is none."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK | _NO_WAIT
    try:
        with os.fdopen(os.open(path, flags, 0o666), "ab") as file:
            file.write(text.encode())
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def read_bytes(path: str | Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file, refused where it has more than ``limit``."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise StorageError(f"{path} has {size} bytes; at most {limit} are read")
        try:
            return file.read(limit)
        except OSError as error:
            raise _cannot_read(Path(path), error) from error


def open_regular(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Open a file for reading: never a device, a pipe or a folder and, unless ``follow``, never a link."""
    flags = os.O_RDONLY | _NO_WAIT | (0 if follow else _NO_LINK)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise _cannot_read(Path(path), error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file; a ValueError where one is too long, holds a NUL or is not UTF-8."""
    with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise ValueError(f"line {number} has more than {MAX_LINE} letters")
            if "\0" in line:
                raise ValueError(f"line {number} holds a NUL byte: this is not a text file")
            yield line


def sha256(path: str | Path, *, follow: bool = True) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with open_regular(path, follow=follow) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _cannot_read(Path(path), error) from error


def refuse_links(folder: str | Path) -> None:
    """Raise where a folder holds anything but regular files and folders, at any depth.

    For folders of many files that no manifest lists: whoever made one could lead reads and writes elsewhere.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            mode = os.lstat(os.path.join(place, name)).st_mode  # noqa: PTH118
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                what = "a link" if stat.S_ISLNK(mode) else "not a regular file"
                raise StorageError(f"{Path(place, name)} is {what}; remove it, or copy what it stands for")


def _refuse_irregular(target: Path) -> None:
    """Only a regular file gives way to a new one: no link, whose target is somebody else's, no folder."""
    if target.is_symlink():
        raise StorageError(f"{target} is a link, and nothing is written through links; remove it first")
    if target.exists() and not target.is_file():
        raise StorageError(f"{target} exists and is not a file; choose another name")


def _beside(target: Path, kind: str) -> Path:
    """A fresh hidden name beside ``target``; leftovers of dead processes there are removed first."""
    remove_leftovers(target.parent)
    return target.with_name(f".{target.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.{kind}")


def _exchange(new: Path, target: Path) -> None:
    """Put ``new`` in the place of the folder ``target``, which comes back if that fails."""
    aside = _beside(target, "replaced")
    target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere, asking would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _flush_folder(path: Path) -> None:
    if os.name == "posix":  # folders cannot be opened elsewhere
        _flush(path, os.O_RDONLY)


def _flush(path: Path, mode: int = os.O_RDWR) -> None:
    descriptor = os.open(path, mode | _NO_LINK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> StorageError:
    """What a person is told when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk is full: cannot write {path}; free some space. What was there is kept")
    reason = error.strerror or str(error)
    return StorageError(f"cannot write {path}: {reason}; what was there is kept")


def _cannot_read(path: Path, error: OSError | ValueError) -> StorageError:
    number = getattr(error, "errno", None)
    if number == errno.ENOENT:
        return StorageError(f"{path} does not exist")
    if number == errno.ELOOP:
        return StorageError(f"{path} is a link, and files of wdae never are; put the file itself there")
    return StorageError(f"cannot read {_named(path)}: {getattr(error, 'strerror', None) or error}")


def _named(path: Path) -> str:
    """A path for a message, cut where it is long."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:297]}..."
