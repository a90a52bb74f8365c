"""Pictures in tars as WebDataset writes them, on disk or in a bucket, and files in a bucket (``s3://``).

A tar holds ``KEY.jpg`` beside ``KEY.cls`` or ``KEY.txt``, the picture's class as text; tars in folders called
base, validation or novel are of that part. Only headers are read when a set is opened; a picture is read
where it lies, by its place in the tar.
"""

from __future__ import annotations

import csv
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdae.data.decode import MAX_BYTES, SUFFIXES, Pixels
from wdae.data.findings import Findings, Picture, build_file_set, part_named
from wdae.data.folders import columns_of
from wdae.data.source import FileNames, content_digest, decoded, file_stamp
from wdae.errors import DataError, MissingExtraError, first_line, listed
from wdae.parts import Part
from wdae.storage.files import open_regular

_LABELS = (".cls", ".txt")
_LONGEST = 1_000  # bytes of a class's name
_MOST_LIST = 256 * 2**20  # bytes of a list of pictures


class Place(NamedTuple):
    """Where a picture's bytes lie: the whole file, or a part of a tar."""

    file: str
    start: int = 0
    size: int = -1
    name: str = ""


@dataclass(frozen=True, eq=False)
class PlacedSource:
    """Pictures by their places, in files or buckets.

    Args:
        tars: the files that pictures are parts of.
        names: of the pictures in their tars; of whole files their addresses.
        where: int64 ``[M, 3]``, each picture's tar, start and size; a tar of −1 is none.
        stamps: what tells other contents of the same files.
    """

    tars: tuple[str, ...]
    names: FileNames
    where: npt.NDArray[np.int64]
    stamps: str

    @staticmethod
    def of(places: Sequence[Place], stamps: str) -> PlacedSource:
        """The source of these places."""
        tars = {place.file: 0 for place in places if place.name}
        tars = {tar: number for number, tar in enumerate(tars)}
        names = FileNames(place.name or place.file for place in places)
        where = [(tars.get(place.file, -1), place.start, min(place.size, 2**62)) for place in places]
        return PlacedSource(tuple(tars), names, np.array(where, np.int64).reshape(-1, 3), stamps)

    def __len__(self) -> int:
        return len(self.names)

    def place(self, index: int) -> Place:
        """Where a picture's bytes lie."""
        (tar, start, size), name = self.where[index].tolist(), self.names[index]
        return Place(name) if tar < 0 else Place(self.tars[tar], start, size, name)

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        """The decoded picture."""
        return decoded(self.describe(index), self._bytes(index), at_least)

    def describe(self, index: int) -> str:
        """The file, or the tar and the name in it."""
        place = self.place(index)
        return f"{place.file}/{place.name}" if place.name else place.file

    def digest(self, index: int) -> bytes:
        """Hash of the encoded picture."""
        return content_digest(self._bytes(index))

    def stamp(self) -> str:
        """The files' stamps, and which pictures these are."""
        names = "\n".join(self.describe(i) for i in range(len(self)))
        return self.stamps + content_digest(names.encode("utf-8", "surrogateescape")).hex()

    def select(self, indices: Sequence[int]) -> PlacedSource:
        """Some of the pictures."""
        names = FileNames(self.names[i] for i in indices)
        return replace(self, names=names, where=self.where[np.asarray(indices, dtype=np.int64)])

    def absolute(self) -> PlacedSource:
        """The same tars, wherever a process works."""
        tars = (tar if is_remote(tar) else os.path.abspath(tar) for tar in self.tars)  # noqa: PTH100
        return replace(self, tars=tuple(tars))

    def _bytes(self, index: int) -> bytes:
        place = self.place(index)
        if place.size > MAX_BYTES:
            raise DataError(f"{self.describe(index)} has {place.size} bytes; at most {MAX_BYTES} are read")
        try:
            if is_remote(place.file):
                end = place.start + place.size if place.name else MAX_BYTES
                found: bytes = _bucket().cat_file(address(place.file), start=place.start, end=end)
                return found
            with open_regular(place.file) as file:
                file.seek(place.start)
                return file.read(place.size)
        except Exception as error:  # of the network, the bucket or the disk
            raise DataError(f"{self.describe(index)} cannot be read: {first_line(error)}") from error


def is_remote(path: str | Path) -> bool:
    """Whether a path is an address in a bucket; as a Path it has lost a slash.

    >>> is_remote("s3://bucket/photos"), is_remote(Path("s3://bucket/photos")), is_remote("photos")
    (True, True, False)
    """
    return str(path).startswith("s3:/")


def address(path: str | Path) -> str:
    """The address that a path was, before it lost a slash.

    >>> address(Path("s3://bucket/photos"))
    's3://bucket/photos'
    """
    return "s3://" + str(path).removeprefix("s3:").lstrip("/")


def is_tars(root: Path) -> bool:
    """Whether tars lie at a path, or in folders of parts below it."""
    return root.suffix == ".tar" or (root.is_dir() and bool(_local_tars(root)))


def read_tars(root: Path, part: Part = Part.BASE_TRAIN) -> Findings:
    """The pictures of tars on disk."""
    files = [str(root)] if root.is_file() else [str(file) for file in _local_tars(root)]
    return _set_of_tars(root.name, files, part, file_stamp(files))


def read_bucket(root: str | Path, part: Part = Part.BASE_TRAIN) -> Findings:
    """What lies at an address: tars, a list of pictures, or a folder per class, perhaps below parts."""
    url = address(root)
    files = _bucket()
    try:
        if url.endswith(".csv"):
            return _remote_list(files, url, part)
        found = {f"s3://{name}": facts for name, facts in files.find(url, detail=True).items()}
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{url} cannot be read: {first_line(error)}; check the address and AWS's keys"
        ) from error
    if not found:
        raise DataError(f"{url} does not exist, or nothing is in it")
    stamps = content_digest(
        "\n".join(f"{n} {f.get('size')} {f.get('ETag')}" for n, f in sorted(found.items())).encode()
    ).hex()
    tars = sorted(name for name in found if name.endswith(".tar"))
    if tars:
        return _set_of_tars(url, tars, part, stamps)
    pictures, places = [], {}
    for name in sorted(found):
        inside = PurePosixPath(name.removeprefix(url.rstrip("/") + "/")).parts
        if len(inside) not in (2, 3) or PurePosixPath(name).suffix.lower() not in SUFFIXES:
            continue
        here = part_named(inside[0]) if len(inside) == 3 else part
        if here is not None:
            pictures.append(Picture(inside[-2], here, name))
            places[name] = Place(name)
    return _placed("bucket", url, pictures, places, stamps)


def _remote_list(files: Any, url: str, part: Part) -> Findings:
    if int(files.info(url)["size"]) > _MOST_LIST:
        raise DataError(f"{url} is too long a list; at most {_MOST_LIST} bytes are read")
    rows = list(csv.reader(io.StringIO(files.cat_file(url).decode("utf-8-sig"))))
    if not rows:
        raise DataError(f"{url} is empty; the first line must name the columns path,label[,part]")
    at_path, at_label, at_part = columns_of(Path(url), rows[0])
    folder, pictures, places = url.rpartition("/")[0], [], {}
    for row in rows[1:]:
        if max(at_path, at_label) >= len(row):
            raise DataError(f"{url}: {','.join(row)!r} lacks a path or a label")
        word = row[at_part].strip() if at_part is not None and at_part < len(row) else ""
        here = part_named(word) if word else part
        name = row[at_path].strip()
        if here is None:
            raise DataError(f"{url}: unknown part {word!r}")
        name = address(name) if is_remote(name) else f"{folder}/{name}"
        pictures.append(Picture(row[at_label].strip(), here, name))
        places[name] = Place(name)
    return _placed("bucket", url, pictures, places, str(files.info(url).get("ETag")))


def _local_tars(root: Path) -> list[Path]:
    return sorted(root.glob("*.tar")) or sorted(
        file
        for folder in root.iterdir()
        if folder.is_dir() and part_named(folder.name)
        for file in folder.glob("*.tar")
    )


def _set_of_tars(name: str, tars: Iterable[str], part: Part, stamps: str) -> Findings:
    pictures, places, unlabelled = [], {}, []
    for tar in tars:
        here = part_named(PurePosixPath(tar).parent.name) or part
        for key, place, label in _members(tar):
            if label is None:
                unlabelled.append(f"{tar}/{key}")
                continue
            file = f"{place.file}/{place.name}"
            pictures.append(Picture(label, here, file))
            places[file] = place
    if unlabelled:
        raise DataError(
            f"{len(unlabelled)} pictures have no class: {listed(unlabelled)}; put KEY.cls beside KEY.jpg"
        )
    return _placed("webdataset", name, pictures, places, stamps)


def _members(tar: str) -> Iterator[tuple[str, Place, str | None]]:
    """Key, place and class of each picture of a tar."""
    places: dict[str, Place] = {}
    labels: dict[str, str] = {}
    try:
        with _opened(tar) as file, tarfile.open(fileobj=file, mode="r:") as members:
            for member in members:
                if not member.isfile():
                    continue
                stem, dot, suffix = PurePosixPath(member.name).name.partition(".")
                key, kind = f"{PurePosixPath(member.name).parent / stem}", f"{dot}{suffix}".lower()
                if kind in SUFFIXES:
                    places[key] = Place(tar, member.offset_data, member.size, member.name)
                elif kind in _LABELS and member.size <= _LONGEST:
                    read = members.extractfile(member)
                    labels[key] = read.read().decode().strip() if read is not None else ""
    except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{tar} is no tar of pictures: {first_line(error)}") from error
    for key, place in places.items():
        yield key, place, labels.get(key) or None


def _opened(tar: str) -> Any:
    return _bucket().open(address(tar), "rb", block_size=2**20) if is_remote(tar) else open_regular(tar)


def _placed(
    layout: str, name: str, pictures: list[Picture], places: dict[str, Place], stamps: str
) -> Findings:
    findings = Findings(layout)
    if not pictures:
        raise DataError(
            f"{name}: no pictures; expected a folder per class, a list (.csv) or tars of WebDataset"
        )
    made = build_file_set(PurePosixPath(name).name, pictures)
    where = [places[made.describe(i)] for i in range(len(made))]
    findings.image_set = replace(made, source=PlacedSource.of(where, stamps))
    return findings


def _bucket() -> Any:
    """The file system of buckets, one for each process: connections do not survive a fork."""
    return _bucket_of(os.getpid())


@lru_cache(maxsize=1)
def _bucket_of(_process: int) -> Any:
    try:
        import s3fs
    except ImportError:
        raise MissingExtraError("s3fs", "s3", "reading from a bucket") from None
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
