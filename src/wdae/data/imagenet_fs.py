"""ImageNet-FS: ILSVRC2012's train/ and val/ class folders, split by class."""

from __future__ import annotations

from pathlib import Path

from wdae.data.findings import Findings, Picture, build_file_set, folders_in, pictures_in
from wdae.data.splits import Reading, load_split
from wdae.errors import DataError, listed
from wdae.parts import Part

NAME = "imagenet-fs"


def read_imagenet_fs(root: Path, reading: Reading = "names") -> Findings:
    """Read the class folders of ``root/train`` and ``root/val``.

    Pictures of ``val`` are queries only (``ImageSet.query_only``): those of base classes are base-held-out,
    the others lie in validation or novel beside the pictures of ``train`` that serve as support.

    Args:
        reading: which reading of the split, see :data:`wdae.data.splits.Reading`.
    """
    findings = Findings(NAME)
    split = load_split(NAME, reading)
    part_of = split.part_of()
    pictures: list[Picture] = []
    for place in ("train", "val"):
        folder = root / place
        if not folder.is_dir():
            findings.missing.append(f"the folder {place}/")
            continue
        present = folders_in(folder)
        if not present:
            raise DataError(
                f"{folder}: has {len(pictures_in(folder))} pictures and no class folders; sort them into"
                " one folder per class (n01440764 and so on) first"
            )
        strangers = [name for name in present if name not in part_of]
        if strangers:
            findings.notes.append(f"{place}/: {len(strangers)} folders are no classes: {listed(strangers)}")
        empty = []
        for wnid in present:
            if wnid not in part_of:
                continue
            part = part_of[wnid]
            if place == "val" and part.is_base:
                part = Part.BASE_HELD_OUT
            files = pictures_in(folder / wnid, findings.others)
            if not files:
                empty.append(wnid)
            pictures += [Picture(wnid, part, file, place == "val") for file in files]
        absent = sorted(part_of.keys() - set(present)) + empty
        if absent:
            findings.missing.append(f"{place}/: {len(absent)} of {len(part_of)} classes: {listed(absent)}")
    if pictures:
        findings.image_set = build_file_set(NAME, pictures)
    return findings
