"""Zips from strangers: nothing in one leads outside, grows without bound or is more than a picture.

A zip of pictures is read, never unpacked: each entry is bytes in memory and a class by its folder's name. A
zip of a model is unpacked into a new folder, by plain names only.
"""

from __future__ import annotations

import io
import shutil
import stat
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wdae.errors import DataError, WdaeError
from wdae.printing import printable, size_text

_MOST_READ = 12 * 2**20  # of the list of entries, which zipfile reads at once: some 100,000 of them
_PIECE = 2**20
_KNOWN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Entry:
    """A file of a zip: its path there, the folder that it lies in, and its bytes or why it is refused."""

    file: str
    folder: str
    data: bytes = b""
    refused: str = ""


def read_zip(
    path: Path, *, files: int, file_bytes: int, all_bytes: int, skip: int = 0
) -> Generator[Entry, None, None]:
    """The files of a zip in their order, one at a time; a bad one is refused by itself.

    Args:
        files: the most that it may have.
        file_bytes: the most that one may grow to.
        all_bytes: the most that all may grow to together.
        skip: how many to leave out at the start: those that were done before an interruption.

    Raises:
        DataError: it is no zip, or has too much.
    """
    with _opened(path) as archive:
        entries = _entries(archive, files)
        claimed = sum(entry.file_size for entry in entries)
        if claimed > all_bytes:
            raise DataError(
                f"the zip unpacks to {size_text(claimed)}; at most {size_text(all_bytes)} are accepted"
            )
        left = all_bytes
        for entry in entries[skip:]:
            file, folder = _place(entry.filename)
            try:
                _check(entry, file_bytes)
                data = _read(archive, entry, min(file_bytes, left))
                left -= len(data)
                yield Entry(file, folder, data)
            except DataError as error:
                yield Entry(file, folder, refused=str(error))


def count_files(path: Path, files: int) -> int:
    """How many files a zip has, folders and hidden files aside."""
    with _opened(path) as archive:
        return len(_entries(archive, files))


def unpack(path: Path, folder: Path, *, files: int, all_bytes: int) -> None:
    """Unpack a zip into a new folder; anything odd about any entry is an error, and nothing is left.

    A single folder that everything lies in is left out of the paths.
    """
    made: list[Path] = []
    with _opened(path) as archive:
        entries = _entries(archive, files)
        names = [_parts(entry.filename) for entry in entries]
        if names and all(len(parts) > 1 and parts[0] == names[0][0] for parts in names):
            names = [parts[1:] for parts in names]
        left = all_bytes
        folder.mkdir()
        try:
            for entry, parts in zip(entries, names, strict=True):
                _check(entry, left)
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                data = _read(archive, entry, left)
                left -= len(data)
                with target.open("xb") as out:  # two entries of one name: an error
                    out.write(data)
                made.append(target)
        except (OSError, WdaeError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise DataError(f"the zip cannot be unpacked: {error}") from error


class _Bounded(io.RawIOBase):
    """A file that gives no more than so much at once: a list of entries without end is not read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or size > _MOST_READ:
            data = self.file.read(_MOST_READ + 1)
            if len(data) > _MOST_READ:
                raise DataError("the zip's list of files is too long")
            return data
        return self.file.read(size)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with path.open("rb") as file, zipfile.ZipFile(_Bounded(file)) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, UnicodeError) as error:
        raise DataError(f"not a zip that can be read: {printable(error)[:200]}") from error


def _entries(archive: zipfile.ZipFile, most: int) -> list[zipfile.ZipInfo]:
    found = [entry for entry in archive.infolist() if not entry.is_dir() and not _hidden(entry.filename)]
    if len(found) > most:
        raise DataError(f"the zip has {len(found)} files; at most {most} are accepted")
    return found


def _hidden(name: str) -> bool:
    """What macOS and others add: not pictures, and nobody's fault."""
    parts = name.replace("\\", "/").split("/")
    return parts[0] == "__MACOSX" or (parts[-1].startswith(".") and parts[-1] not in (".", ".."))


def _place(name: str) -> tuple[str, str]:
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    return name, parts[-2] if len(parts) > 1 else ""


def _parts(name: str) -> list[str]:
    """The parts of a path that stays where it is put; others are an error."""
    parts = name.split("/")
    if (
        not name
        or name.startswith("/")
        or "\\" in name
        or "\0" in name
        or ":" in parts[0]
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise DataError(f"the path {printable(name)[:200]!r} leads out of the zip; zip a plain folder")
    return parts


def _check(entry: zipfile.ZipInfo, most: int) -> None:
    # zipfile cuts a name at a NUL, and keeps the whole one beside it.
    _parts(entry.orig_filename if "\0" in entry.orig_filename else entry.filename)
    mode = entry.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        raise DataError("is a link or a device, not a file")
    if entry.flag_bits & 0x1:
        raise DataError("is encrypted; send it without a password")
    if entry.compress_type not in _KNOWN:
        raise DataError("is packed in a way that is not read; zip it with deflate, as programs usually do")
    if entry.file_size > most:
        raise DataError(f"unpacks to {size_text(entry.file_size)}; at most {size_text(most)} are accepted")
    if entry.filename.lower().endswith((".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".xz", ".bz2")):
        raise DataError("is an archive inside an archive; send its pictures themselves")


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """All of an entry, whatever size it claims to have: never more than ``most`` bytes are unpacked."""
    pieces: list[bytes] = []
    size = 0
    try:
        with archive.open(entry) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                if size > most:
                    raise DataError(f"unpacks to more than {size_text(most)}, which is the most accepted")
                pieces.append(piece)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise DataError(f"is damaged: {printable(error)[:200]}") from error
    return b"".join(pieces)
