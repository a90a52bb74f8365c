"""A benchmark laid out as one folder per class, all together or under train/, val/ and test/."""

from __future__ import annotations

from pathlib import Path

from wdae.data.findings import Findings, Picture, build_file_set, folders_in, part_named, pictures_in
from wdae.data.splits import ClassSplit
from wdae.errors import listed
from wdae.parts import Part


def read_benchmark_folders(root: Path, split: ClassSplit) -> Findings:
    """Read ``root/CLASS/*`` by the split, or ``root/{train,val,test}/CLASS/*`` by the folders.

    Where the folders and the split disagree about a class the folders win, and a note says so.
    """
    findings = Findings(split.name)
    places = {name: part for name in folders_in(root) if (part := part_named(name)) is not None}
    known = split.part_of()
    pictures: list[Picture] = []
    found: set[str] = set()
    strangers, elsewhere, empty = [], [], []
    groups: list[tuple[Path, Part | None]] = [(root / name, part) for name, part in places.items()]
    for folder, part in groups or [(root, None)]:
        for wnid in folders_in(folder):
            usual = known.get(wnid)
            if usual is None:
                strangers.append(wnid)
                if part is None:
                    continue
            elif part is not None and part.kind != usual.kind:
                elsewhere.append(f"{wnid} ({usual.kind})")
            files = pictures_in(folder / wnid, findings.others)
            if not files:
                empty.append(str(folder / wnid))
                continue
            found.add(wnid)
            here = part if part is not None else known[wnid]
            pictures += [Picture(wnid, here, file) for file in files]
    absent = [wnid for wnid in split.classes if wnid not in found]
    if empty:
        findings.missing.append(f"class folders without pictures: {listed(empty)}")
    if absent:
        findings.missing.append(f"{len(absent)} of {len(split.classes)} classes: {listed(absent)}")
    if strangers:
        findings.notes.append(f"{len(strangers)} folders are no classes of {split.name}: {listed(strangers)}")
    if elsewhere:
        findings.notes.append(f"{len(elsewhere)} classes lie in another part than usual: {listed(elsewhere)}")
    if pictures:
        findings.image_set = build_file_set(split.name, pictures, split.superclasses)
    return findings
