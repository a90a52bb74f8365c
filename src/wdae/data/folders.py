"""Your own pictures: a folder per class, or such folders under a folder per part."""

from __future__ import annotations

from pathlib import Path

from wdae.data.findings import (
    Findings,
    Picture,
    build_file_set,
    folders_in,
    part_named,
    pictures_in,
)
from wdae.errors import DataError, listed
from wdae.parts import Part


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
