"""Files that are either the old or the new one, whole: a temporary name, a flush, then a rename."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from wdae.errors import StorageError

_SUFFIX = ".tmp"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there takes the place of ``path`` when the body ends.

    On any exception, and when the disk is full, the temporary file is removed and the old file survives.
    The path lies in a hidden folder beside the target, so that its suffix is kept for libraries that go by
    it, and whatever they leave there when killed is swept away by the next writer.
    """
    target = _resolved(path)
    if target.exists() and not target.is_file():
        raise StorageError(f"{target} exists and is not a file; choose another name")
    folder = _temporary(target)
    temporary = folder / target.name
    try:
        folder.mkdir()
        yield temporary
        if not temporary.is_file():
            raise StorageError(f"nothing was written for {target}")
        _flush(temporary)
        temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder that becomes ``path`` when the body ends; nothing may be there yet."""
    refuse_existing(path)
    target = _resolved(path)
    temporary = _temporary(target)
    try:
        temporary.mkdir()
        yield temporary
        for folder, _, names in os.walk(temporary, topdown=False):
            for name in names:
                _flush(Path(folder, name))
            _flush_folder(Path(folder))
        if target.exists():  # a rename would quietly replace an empty folder
            raise StorageError(f"{target} appeared while it was being written; choose another name")
        temporary.rename(target)
        _flush_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: str | Path) -> None:
    """Raise where something is at ``path`` already: to be told before the work, not after it."""
    if Path(path).exists() or Path(path).is_symlink():
        raise StorageError(f"{path} exists already; remove it or choose another name")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically and with its line ends as they are."""
    write_bytes(path, text.encode())


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


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _cannot_read(Path(path), error) from error


def _resolved(path: str | Path) -> Path:
    """The file itself where ``path`` is a link, in a folder that exists."""
    target = Path(path)
    try:
        target = target.resolve() if target.is_symlink() else target.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from error
    return target


def _temporary(target: Path) -> Path:
    """A fresh hidden folder's name beside ``target``; the leavings of killed writers are swept away first."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    prefix = f".{target.name}.{host}-"
    for stale in target.parent.iterdir():
        if stale.name.startswith(prefix) and stale.name.endswith(_SUFFIX):
            owner = stale.name.removeprefix(prefix).split("-")[0]
            if owner.isdigit() and not _alive(int(owner)):
                shutil.rmtree(stale, ignore_errors=True)
    return target.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")


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


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: Path) -> None:
    if os.name != "posix":  # folders cannot be opened elsewhere
        return
    descriptor = os.open(path, os.O_RDONLY)
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
