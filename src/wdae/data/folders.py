"""Your own pictures: a folder per class, perhaps under a folder per part; or a list of path, label, part."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wdae.data.findings import (
    PART_NAMES,
    Findings,
    Picture,
    build_file_set,
    folders_in,
    part_named,
    pictures_in,
    read_csv,
)
from wdae.errors import DataError, listed, nearest
from wdae.parts import Part

_COLUMNS = {
    "path": ("path", "file", "filename", "image"),
    "label": ("label", "class"),
    "part": ("part", "split"),
}


def read_folders(root: Path, part: Part = Part.BASE_TRAIN) -> Findings:
    """Read ``root/CLASS/*``, all of one part, or ``root/PART/CLASS/*``.

    A part's folder is called base, base-held-out, validation or novel; train, val and test are understood.

    Args:
        part: what the pictures are for where no folder says it.
    """
    findings = Findings("folders")
    names = folders_in(root)
    groups: list[tuple[Path, Part]] = [
        (root / name, found) for name in names if (found := part_named(name)) is not None
    ]
    # A lone folder called "test" may well be a class of its own: parts hold folders, classes hold pictures.
    groups = [(folder, found) for folder, found in groups if folders_in(folder)]
    if groups and len(groups) < len(names):
        others = sorted(set(names) - {folder.name for folder, _ in groups})
        findings.notes.append(f"folders beside the parts were left alone: {listed(others)}")
    pictures: list[Picture] = []
    for folder, here in groups or [(root, part)]:
        for label in folders_in(folder):
            files = pictures_in(folder / label, findings.others)
            if not files:
                findings.missing.append(
                    f"class {label!r} has 0 pictures in {folder / label}; give at least 1 (jpg, png, webp)"
                )
            pictures += [Picture(label, here, file) for file in files]
    if not pictures and not findings.missing:
        raise DataError(f"{root}: no class folders; expected one folder per class with its pictures inside")
    if pictures:
        findings.image_set = build_file_set(root.name or str(root), pictures)
    return findings


def read_csv_list(file: Path, part: Part = Part.BASE_TRAIN) -> Findings:
    """Read a list whose first line names its columns; paths count from the list's own folder.

    Args:
        part: what pictures are for where the list does not say.
    """
    findings = Findings("csv")
    rows = read_csv(file)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{file}: is empty; the first line must name the columns path,label[,part]")
    at_path, at_label, at_part = columns_of(file, header)
    pictures, absent, faults = [], [], []
    for number, row in enumerate(rows, 2):
        if max(at_path, at_label) >= len(row) or not row[at_path].strip() or not row[at_label].strip():
            faults.append(f"line {number}: {','.join(row)!r} lacks a path or a label")
            continue
        word = row[at_part].strip() if at_part is not None and at_part < len(row) else ""
        here = part_named(word) if word else part
        if here is None:
            faults.append(f"line {number}: unknown part {word!r}{nearest(word, PART_NAMES)}")
            continue
        path = os.path.join(file.parent, row[at_path].strip())  # noqa: PTH118 (keeps an absolute path as it is)
        if os.path.isfile(path):  # noqa: PTH113
            pictures.append(Picture(sys.intern(row[at_label].strip()), here, path))
        else:
            absent.append(f"{row[at_path].strip()} (line {number})")
    if faults:
        raise DataError(f"{file}: {'; '.join(faults[:10])}{' ...' if len(faults) > 10 else ''}")
    twice = _repeated([picture.file for picture in pictures])
    if twice:
        findings.notes.append(f"{len(twice)} pictures are listed more than once: {listed(twice)}")
    if absent:
        findings.missing.append(f"{len(absent)} pictures of {file.name} do not exist: {listed(absent)}")
    if pictures:
        findings.image_set = build_file_set(file.stem, pictures)
    return findings


def columns_of(file: Path, header: list[str]) -> tuple[int, int, int | None]:
    """Where path, label and, if there is one, part stand in a list."""
    names = [name.strip().lower() for name in header]
    found = {
        column: next((names.index(alias) for alias in aliases if alias in names), None)
        for column, aliases in _COLUMNS.items()
    }
    if found["path"] is None or found["label"] is None:
        raise DataError(
            f"{file}: the first line is {','.join(header)!r}; it must name the columns path,label[,part]"
        )
    return found["path"], found["label"], found["part"]


def _repeated(values: list[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({value for value in values if value in seen or seen.add(value)})  # type: ignore[func-returns-value]
