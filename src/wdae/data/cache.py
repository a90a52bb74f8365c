"""Small-picture sets, decoded once into a memory-mapped array that later starts find by its content."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from wdae.data.decode import Pixels, fit
from wdae.data.image_set import ImageSet, Labels, Parts
from wdae.data.parallel import in_chunks
from wdae.data.source import ImageSource, content_digest
from wdae.errors import DataError, StorageError, listed
from wdae.parts import Part
from wdae.storage.files import atomic_folder
from wdae.storage.lock import alone
from wdae.storage.records import Count, Record, Size, Text, read_record, write_json

_VERSION = 1  # raise it whenever the same picture would come out as other pixels
_CHUNK_BYTES = 4 * 2**20


ENTRY = "entry.json"


class _Index(Record):
    content: Annotated[str, Field(pattern="^[0-9a-f]{16,128}$")]


class _Entry(Record):
    """What is known of an entry: which pictures could not be read, and why."""

    broken: tuple[tuple[Count, Text], ...]
    size: Size


@dataclass(frozen=True, eq=False)
class PixelArray:
    """A set's pictures at one size, with what belongs to each.

    Args:
        dropped: unreadable pictures that were left out, each with the reason.
        kept: for each row, its number in the ImageSet.

    Shapes:
        data uint8 [M, size, size, 3], mapped from a file, read-only; labels int64 [M]; parts uint8 [M];
        kept int64 [M]; query_only bool [M] or None.

    >>> data = np.zeros((2, 8, 8, 3), np.uint8)
    >>> array = PixelArray(data, np.array([0, 1]), np.zeros(2, np.uint8), ("cat", "dog"), [], np.arange(2))
    >>> len(array), array.tensor().shape
    (2, torch.Size([2, 3, 8, 8]))
    """

    data: Pixels
    labels: Labels
    parts: Parts
    class_names: tuple[str, ...]
    dropped: list[str]
    kept: npt.NDArray[np.int64]
    query_only: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, part: Part) -> npt.NDArray[np.int64]:
        """The rows of one part, ascending."""
        return np.flatnonzero(self.parts == part.code).astype(np.int64)

    def tensor(
        self, device: str | torch.device = "cpu", rows: npt.NDArray[np.int64] | None = None
    ) -> torch.Tensor:
        """All pictures, or some rows of them, as uint8 [n, 3, size, size] on a device.

        In memory the channels come last, as on disk and as convolutions on a GPU like them best.
        """
        count = len(self) if rows is None else len(rows)
        size = self.data.shape[1]
        out = torch.empty((count, size, size, 3), dtype=torch.uint8, device=device)
        step = max(1, 2**26 // (size * size * 3))
        for start in range(0, count, step):
            piece = slice(start, min(start + step, count)) if rows is None else rows[start : start + step]
            out[start : start + step] = torch.from_numpy(np.array(self.data[piece]))
        return out.permute(0, 3, 1, 2)


def default_cache() -> Path:
    """``$WDAE_CACHE``, or ``wdae`` in the user's cache folder."""
    if chosen := os.environ.get("WDAE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wdae"


def pixels(
    image_set: ImageSet,
    size: int,
    *,
    cache_dir: Path | None = None,
    workers: int | None = None,
    skip_broken: bool = False,
) -> PixelArray:
    """The whole set at ``size`` × ``size`` pixels: from the cache, or decoded in parallel and kept there.

    The cache is found by the pictures' content, in order, so labels and parts may change and folders may
    move. A second start does not read the pictures again: an index leads from the files' names, sizes and
    times of change to the content they had.

    Args:
        cache_dir: where the arrays are kept; :func:`default_cache` by default.
        workers: decoding processes; all cores by default.
        skip_broken: leave unreadable pictures out and list them in ``dropped``, instead of refusing the set.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from PIL import Image
    >>> root = Path(place.name)
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (20, 16), "red").save(root / name / "1.png")
    >>> from wdae.data import open_dataset
    >>> array = pixels(open_dataset(root), size=8, cache_dir=root / "cache", workers=0)
    >>> array.data.shape, array.tensor().shape
    ((2, 8, 8, 3), torch.Size([2, 3, 8, 8]))
    """
    if size < 1:
        raise DataError(f"pictures cannot be {size} pixels wide; give a size of at least 1")
    root = Path(cache_dir) if cache_dir is not None else default_cache()
    try:
        entry = _entry(image_set.source, size, root, workers)
        broken = dict(read_record(_Entry, entry / ENTRY).broken)
    except (OSError, StorageError) as error:
        raise _no_cache(root, len(image_set), size, error) from error
    dropped = list(broken.values())
    if dropped and not skip_broken:
        raise DataError(
            f"{image_set.name}: {len(dropped)} of {len(image_set)} pictures cannot be read: "
            f"{listed(dropped)}; repair them, or leave them out with skip_broken (--skip-broken)"
        )
    kept = np.setdiff1d(np.arange(len(image_set), dtype=np.int64), np.array(sorted(broken), dtype=np.int64))
    if not len(kept):
        raise DataError(f"{image_set.name}: not one picture can be read: {listed(dropped)}")
    data = np.memmap(entry / "pixels", dtype=np.uint8, mode="r", shape=(len(kept), size, size, 3))
    return PixelArray(
        data=data,
        labels=image_set.labels[kept],
        parts=image_set.parts[kept],
        class_names=image_set.class_names,
        dropped=dropped,
        kept=kept,
        query_only=None if image_set.query_only is None else image_set.query_only[kept],
    )


def _entry(source: ImageSource, size: int, root: Path, workers: int | None) -> Path:
    """The cache's folder for these pictures at this size, built if need be."""
    index = root / "index" / f"{source.stamp()}.json"
    if index.is_file():
        with contextlib.suppress(StorageError):  # an unreadable index is no index
            entry = root / _entry_name(read_record(_Index, index).content, size)
            if _whole(entry, len(source), size):
                return entry
    content = _content(source, workers)
    entry = root / _entry_name(content, size)
    with alone(root, math.inf, name=f".{entry.name}.lock", make=True):  # others wait, and find it built
        if not _whole(entry, len(source), size):
            shutil.rmtree(entry, ignore_errors=True)
            _build(source, size, entry, workers)
    write_json(index, _Index(content=content))
    return entry


def _entry_name(content: str, size: int) -> str:
    return f"pixels-{content}-{size}-v{_VERSION}"


def _whole(entry: Path, count: int, size: int) -> bool:
    """Whether the folder holds all it should; a cut or foreign one is built anew."""
    try:
        rows = count - len(read_record(_Entry, entry / ENTRY).broken)
        return (entry / "pixels").stat().st_size == rows * size * size * 3
    except (OSError, StorageError):
        return False


def _content(source: ImageSource, workers: int | None) -> str:
    found = dict(in_chunks(_digests, source, chunk=1024, workers=workers, title="comparing with the cache"))
    return content_digest(b"".join(found[start] for start in sorted(found))).hex()


def _digests(source: ImageSource, start: int, stop: int) -> bytes:
    digests = []
    for index in range(start, stop):
        try:
            digests.append(source.digest(index))
        except DataError as error:
            digests.append(content_digest(f"unreadable: {error}".encode()))
    return b"".join(digests)


def _build(source: ImageSource, size: int, entry: Path, workers: int | None) -> None:
    row = size * size * 3
    need = len(source) * row
    entry.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(entry.parent).free
    if free < need:
        raise OSError(f"{free / 1e6:.0f} MB free")
    try:
        with atomic_folder(entry) as folder:
            file = folder / "pixels"
            with file.open("wb") as new:
                if hasattr(os, "posix_fallocate"):  # a full disk is better noticed now than after an hour
                    os.posix_fallocate(new.fileno(), 0, need)
                new.truncate(need)
            broken: list[tuple[int, str]] = []
            chunk = max(1, min(512, _CHUNK_BYTES // row))
            for _, faults in in_chunks(
                _decode_into, source, size, str(file), chunk=chunk, workers=workers, title="decoding"
            ):
                broken += faults
            broken.sort()
            _close_gaps(file, [index for index, _ in broken], len(source), row)
            write_json(folder / ENTRY, _Entry(broken=tuple(broken), size=size))
    except StorageError:
        if not _whole(
            entry, len(source), size
        ):  # else another process, elsewhere, was faster: its work is ours
            raise


def _decode_into(source: ImageSource, start: int, stop: int, size: int, file: str) -> list[tuple[int, str]]:
    """Decode pictures ``start`` to ``stop`` into their rows of ``file``; the unreadable are returned."""
    block = np.zeros((stop - start, size, size, 3), dtype=np.uint8)
    broken = []
    for index in range(start, stop):
        try:
            # Twice the size leaves the antialiased resampling enough to work with.
            block[index - start] = fit(source.read(index, at_least=2 * size), size)
        except DataError as error:
            broken.append((index, str(error)))
    with Path(file).open("r+b") as out:  # written, not mapped: a full disk is an error, not a signal
        out.seek(start * block[0].nbytes)
        out.write(block.data)
    return broken


def _close_gaps(file: Path, gaps: Sequence[int], count: int, row: int) -> None:
    """Move the rows behind each gap up, so that what is left is one array."""
    if not gaps:
        return
    rows = np.memmap(file, dtype=np.uint8, mode="r+", shape=(count, row))
    for moved, (gap, following) in enumerate(zip(gaps, [*gaps[1:], count], strict=True)):
        for index in range(gap + 1, following):
            rows[index - moved - 1] = rows[index]
    rows.flush()
    del rows
    os.truncate(file, (count - len(gaps)) * row)


def _no_cache(root: Path, count: int, size: int, error: Exception) -> DataError:
    need = count * size * size * 3
    return DataError(
        f"cannot keep {count} pictures of {size} × {size} pixels ({need / 1e6:.1f} MB) in {root}: {error};"
        " free some space there, or choose another folder with cache_dir (--cache-dir) or WDAE_CACHE"
    )
