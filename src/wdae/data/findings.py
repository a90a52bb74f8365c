"""What a reader found, and the pieces that readers of files share."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdae.data.decode import FORMATS, HEIC_HINT, SUFFIXES
from wdae.data.image_set import ImageSet
from wdae.data.source import FileNames, FileSource
from wdae.errors import DataError, StorageError, listed
from wdae.parts import Part
from wdae.printing import warn
from wdae.storage.files import text_lines

STRICT = "--strict"
"""The option of most commands that makes pictures that cannot be read an error."""


@dataclass
class Findings:
    """A set, and what is wrong with it.

    Args:
        image_set: None where there was nothing to read.
        missing: what should be there and is not; a set with such gaps is refused unless asked otherwise.
        notes: what a person should know and that does not hinder.
        others: files among the pictures that are not of a kind that is read, such as HEIC.
    """

    layout: str
    image_set: ImageSet | None = None
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


_OF_MACOS = "__MACOSX"


class Picture(NamedTuple):
    """One file of a set under construction."""

    label: str
    part: Part
    file: str
    query_only: bool = False


PART_NAMES: dict[str, Part] = {
    "base-train": Part.BASE_TRAIN,
    "base": Part.BASE_TRAIN,
    "train": Part.BASE_TRAIN,
    "base-held-out": Part.BASE_HELD_OUT,
    "held-out": Part.BASE_HELD_OUT,
    "validation": Part.VALIDATION,
    "val": Part.VALIDATION,
    "valid": Part.VALIDATION,
    "novel": Part.NOVEL,
    "test": Part.NOVEL,
}
"""The names people give to parts, in folders and lists."""


def part_named(name: str) -> Part | None:
    """The part a folder's or a list's word stands for; capitals and underscores are forgiven."""
    return PART_NAMES.get(name.strip().lower().replace("_", "-"))


def folders_in(path: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones left out, and what macOS puts into zips."""
    with _scan(path) as entries:
        names = (entry.name for entry in entries if entry.is_dir())
        return sorted(name for name in names if not name.startswith(".") and name != _OF_MACOS)


def pictures_in(path: Path, others: list[str] | None = None) -> list[str]:
    """The picture files in a folder, sorted, by their suffix; hidden ones left out.

    Args:
        others: gets the names of the files of other kinds, and of folders with pictures, which end in a
            separator.
    """
    pictures: list[str] = []
    rest: list[str] = []
    with _scan(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_file():
                if others is not None and entry.is_dir() and _has_pictures(entry.path):
                    rest.append(entry.path + os.sep)
                continue
            known = os.path.splitext(entry.name)[1].lower() in SUFFIXES  # noqa: PTH122 (a million of them)
            (pictures if known else rest).append(entry.path)
    if others is not None:
        others += sorted(rest)
    return sorted(pictures)


def _has_pictures(folder: str) -> bool:
    """Whether a folder has pictures anywhere in it."""
    return any(
        Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        for _, _, files in os.walk(folder)
        for name in files
    )


def left_out(others: Sequence[str]) -> str:
    """A sentence about the files of other kinds in a folder of pictures, and about folders in it.

    >>> print(left_out(["cat/IMG_1.HEIC"]))
    1 left out, not of a kind that is read (JPEG, ...): cat/IMG_1.HEIC; HEIC is with: pip install 'wdae[heic]'
    >>> print(left_out(["cat/2023/"]))
    left out: pictures in folders inside a class's folder: cat/2023/; put them into that folder itself
    """
    inside = [name for name in others if name.endswith(os.sep)]
    if inside:
        text = (
            f"left out: pictures in folders inside a class's folder: {listed(inside, 5)};"
            " put them into that folder itself"
        )
        rest = [name for name in others if not name.endswith(os.sep)]
        return f"{left_out(rest)}; {text}" if rest else text
    kinds = ", ".join(FORMATS)
    heic = any(name.lower().endswith((".heic", ".heif", ".hif")) for name in others)
    advice = HEIC_HINT if heic else ""
    return f"{len(others)} left out, not of a kind that is read ({kinds}): {listed(others, 5)}{advice}"


def warn_left_out(images: ImageSet, read: npt.NDArray[np.int64], strict: str = STRICT) -> None:
    """Name every picture of a set that could not be read; ``read`` are the numbers of those that could."""
    left_out = np.setdiff1d(np.arange(len(images)), read).tolist()
    warn_unreadable([why_not(images, row) for row in left_out], strict)


def why_not(images: ImageSet, row: int) -> str:
    """A picture that could not be read, with the reason."""
    try:
        images.read(row)
    except DataError as error:
        return str(error)
    return images.describe(row)


def warn_unreadable(unreadable: Sequence[str], strict: str = STRICT) -> None:
    """Name every picture that was left out, with the reason, and the option that makes it an error."""
    for name in unreadable:
        warn(f"left out, cannot be read: {name}")
    if unreadable:
        count = "1 picture was" if len(unreadable) == 1 else f"{len(unreadable)} pictures were"
        warn(f"{count} left out; with {strict} that is an error")


def read_csv(file: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, empty lines left out; a list may be a stranger's, so its lines are bounded."""
    try:
        yield from filter(None, csv.reader(text_lines(file), strict=True))
    except StorageError as error:
        raise DataError(str(error)) from error
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as a CSV file: {error}") from error


def build_file_set(
    name: str, pictures: Iterable[Picture], superclasses: Mapping[str, str] | None = None
) -> ImageSet:
    """Number the classes (base, validation, novel; each sorted) and lay the pictures out in their order."""
    rows = list(pictures)
    if not rows:
        raise DataError(f"{name}: no pictures at all; accepted: {', '.join(sorted(SUFFIXES))}")
    first: dict[str, Picture] = {}
    mixed: list[str] = []
    for row in rows:
        seen = first.setdefault(row.label, row)
        if seen.part.kind != row.part.kind:
            mixed.append(f"{row.label!r} ({seen.part.kind}: {seen.file}; {row.part.kind}: {row.file})")
            first[row.label] = row
    if mixed:
        raise DataError(
            f"{name}: a class is base, validation or novel, and only one of them; in more than one:"
            f" {listed(mixed)}. Held-out pictures of base classes belong into the part base-held-out"
        )
    kinds = [Part.BASE_TRAIN.kind, Part.VALIDATION.kind, Part.NOVEL.kind]
    names = sorted(first, key=lambda label: (kinds.index(first[label].part.kind), label))
    numbers = {label: number for number, label in enumerate(names)}
    codes = {part: part.code for part in Part}
    rows.sort(key=lambda row: (numbers[row.label], codes[row.part], row.file))
    query_only = np.array([row.query_only for row in rows], dtype=np.bool_)
    return ImageSet(
        name=name,
        source=FileSource(FileNames(row.file for row in rows)),
        labels=np.array([numbers[row.label] for row in rows], dtype=np.int64),
        parts=np.array([codes[row.part] for row in rows], dtype=np.uint8),
        class_names=tuple(names),
        query_only=query_only if query_only.any() else None,
        superclasses=tuple(superclasses.get(label, "") for label in names) if superclasses else None,
    )


def uneven_counts(image_set: ImageSet, expected: int) -> list[str]:
    """A note where classes have another number of pictures than the benchmark says."""
    counts = np.bincount(image_set.labels, minlength=len(image_set.class_names))
    odd = [f"{image_set.class_names[i]} {counts[i]}" for i in np.flatnonzero(counts != expected)]
    if not odd:
        return []
    return [f"{len(odd)} classes do not have the usual {expected} pictures: {listed(odd)}"]


def _scan(path: Path) -> os._ScandirIterator[str]:
    try:
        return os.scandir(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be listed: {error.strerror or error}") from error
