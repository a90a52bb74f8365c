"""Where the pictures of a set lie: in files, as encoded bytes in memory, or as arrays in memory."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from wdae.data.decode import MAX_BYTES, Pixels, decode
from wdae.errors import DataError, StorageError
from wdae.storage.files import read_bytes


class ImageSource(Protocol):
    """Pictures by number. Has to survive a move to a worker process (fork or pickle).

    >>> source: ImageSource = FileSource(("a.jpg", "b.jpg", "c.jpg"))
    >>> len(source.select([0, 2]))
    2
    """

    def __len__(self) -> int: ...

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        """Picture ``index`` as uint8 [height, width, 3]; a DataError names it where it cannot be read."""
        ...

    def describe(self, index: int) -> str:
        """A name a person can find the picture by."""
        ...

    def digest(self, index: int) -> bytes:
        """A hash of the picture's content, wherever it lies."""
        ...

    def stamp(self) -> str:
        """A cheap sign that changes whenever the files behind the source do; no picture is read for it."""
        ...

    def select(self, indices: Sequence[int]) -> ImageSource:
        """The same pictures, fewer of them or in another order."""
        ...


class FileNames(Sequence[str]):
    """Names of files, one after the other in one array: a million strings take a hundred megabytes more.

    >>> names = FileNames(["a.jpg", "b/c.jpg"])
    >>> len(names), names[1], list(names[:1])
    (2, 'b/c.jpg', ['a.jpg'])
    """

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += name.encode("utf-8", "surrogatepass")  # every name, whatever the locale
            ends.append(len(text))
        self._text, self._ends = np.array(text, np.uint8), np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> FileNames: ...
    def __getitem__(self, index: int | slice) -> str | FileNames:
        """One name, or some."""
        at = range(len(self))[index]
        if isinstance(at, range):
            return FileNames(self[i] for i in at)
        return self._text[self._ends[at] : self._ends[at + 1]].tobytes().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class FileSource:
    """One file a picture.

    >>> source = FileSource(("photos/a.jpg", "photos/b.jpg"))
    >>> len(source), source.describe(1)
    (2, 'photos/b.jpg')
    """

    files: Sequence[str]

    def __post_init__(self) -> None:
        if not isinstance(self.files, FileNames):
            object.__setattr__(self, "files", FileNames(self.files))

    def __len__(self) -> int:
        return len(self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files as paths."""
        return tuple(map(Path, self.files))

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        """The decoded file."""
        return decoded(self.describe(index), self._bytes(index), at_least)

    def describe(self, index: int) -> str:
        """The file's path."""
        return self.files[index]

    def digest(self, index: int) -> bytes:
        """Hash of the file's bytes."""
        return content_digest(self._bytes(index))

    def stamp(self) -> str:
        """Path, size, and times of change of every file."""
        return file_stamp(self.files)

    def select(self, indices: Sequence[int]) -> FileSource:
        """Some of the files."""
        return FileSource(FileNames(self.files[i] for i in indices))

    def absolute(self) -> FileSource:
        """The same files, wherever a process works."""
        return FileSource(FileNames(map(os.path.abspath, self.files)))

    def _bytes(self, index: int) -> bytes:
        try:
            return read_bytes(self.files[index], MAX_BYTES)
        except StorageError as error:
            raise DataError(str(error)) from error


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """Encoded pictures (PNG, JPEG ...) in memory, as some benchmarks are handed around.

    Args:
        items: the encoded pictures, bytes or uint8 arrays of any shape.
        names: what :meth:`describe` answers.
        origins: the files all this was read from.

    >>> import io
    >>> from PIL import Image
    >>> buffer = io.BytesIO()
    >>> Image.new("RGB", (4, 3), "red").save(buffer, "PNG")
    >>> source = EncodedSource((buffer.getvalue(),), ("red.png",), ())
    >>> source.read(0).shape, source.read(0)[0, 0].tolist()
    ((3, 4, 3), [255, 0, 0])
    """

    items: tuple[bytes | npt.NDArray[np.uint8], ...]
    names: tuple[str, ...]
    origins: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        """The decoded picture."""
        return decoded(self.describe(index), bytes(self.items[index]), at_least)

    def describe(self, index: int) -> str:
        """The name given for it."""
        return self.names[index]

    def digest(self, index: int) -> bytes:
        """Hash of the encoded bytes."""
        return content_digest(bytes(self.items[index]))

    def stamp(self) -> str:
        """The files' stamp, and which of their pictures these are."""
        return file_stamp(self.origins) + content_digest("\n".join(self.names).encode()).hex()

    def select(self, indices: Sequence[int]) -> EncodedSource:
        """Some of the pictures."""
        items, names = (tuple(values[i] for i in indices) for values in (self.items, self.names))
        return EncodedSource(items, names, self.origins)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Pixels in memory.

    Shapes:
        arrays: each uint8 [n, height, width, 3]; ``where`` int64 [M, 2] says in which array, at which row.

    >>> pictures = np.zeros((10, 8, 8, 3), dtype=np.uint8)
    >>> source = ArraySource((pictures,), np.array([[0, 3], [0, 7]]), ("pictures",))
    >>> len(source), source.read(1).shape
    (2, (8, 8, 3))
    """

    arrays: tuple[npt.NDArray[np.uint8], ...]
    where: npt.NDArray[np.int64]
    origins: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.where)

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        """The picture itself."""
        array, row = self.where[index]
        pixels: Pixels = self.arrays[array][row]
        return pixels

    def describe(self, index: int) -> str:
        """File and row."""
        array, row = self.where[index]
        return f"{self.origins[array]}[{row}]"

    def digest(self, index: int) -> bytes:
        """Hash of shape and pixels."""
        pixels = self.read(index)
        return content_digest(repr(pixels.shape).encode() + pixels.tobytes())

    def stamp(self) -> str:
        """The files' stamp, and which of their rows these are."""
        return file_stamp(self.origins) + content_digest(self.where.tobytes()).hex()

    def select(self, indices: Sequence[int]) -> ArraySource:
        """Some of the pictures."""
        return ArraySource(self.arrays, self.where[np.asarray(indices, dtype=np.int64)], self.origins)


def content_digest(data: bytes) -> bytes:
    """128 bits of BLAKE2b: as good as certain never to meet twice, and faster than SHA-256."""
    return hashlib.blake2b(data, digest_size=16).digest()


def file_stamp(files: Iterable[str]) -> str:
    """Hash of path, size, modification and change time of each file; absent ones count as such.

    The change time is part of it because a copy that keeps modification times (cp -p, rsync -t) cannot fake
    it.
    """
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            found = os.stat(file)  # noqa: PTH116 (60,000 of them in a quarter of a second)
            line = f"{os.path.abspath(file)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\n"  # noqa: PTH100
        except OSError:
            line = f"{file}\0absent\n"
        whole.update(line.encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def decoded(name: str, data: bytes, at_least: int | None) -> Pixels:
    """A picture from its encoded bytes; an error names it."""
    try:
        return decode(data, at_least)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
