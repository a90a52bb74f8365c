"""Check a set before computing from it: what is there, what is missing, what cannot be read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wdae.data.contact_sheet import contact_sheet
from wdae.data.findings import left_out
from wdae.data.image_set import ImageSet
from wdae.data.layouts import find
from wdae.data.parallel import in_chunks
from wdae.data.source import ImageSource
from wdae.data.splits import Reading
from wdae.errors import DataError
from wdae.parts import Part

_CHUNK = 64


@dataclass(frozen=True)
class PartCount:
    """How much of a part there is."""

    part: Part
    n_classes: int
    n_images: int
    fewest: int
    most: int


@dataclass
class CheckReport:
    """All there is to say about a set.

    Args:
        broken: unreadable pictures, each with its reason.
        copies: groups of pictures with the very same bytes in more than one class.
        sheets: the contact sheets written.
    """

    layout: str
    name: str
    n_classes: int
    counts: list[PartCount]
    missing: list[str]
    notes: list[str]
    broken: list[str] = field(default_factory=list)
    copies: list[tuple[str, ...]] = field(default_factory=list)
    sheets: list[Path] = field(default_factory=list)


def check(
    path: str | Path,
    layout: str = "auto",
    *,
    reading: Reading = "names",
    sheet_dir: Path | None = None,
    workers: int | None = None,
) -> CheckReport:
    """Read everything once, decode every picture, and report.

    Args:
        sheet_dir: writes ``sheet-PART.png`` there for each part with pictures.
    """
    findings = find(path, layout, reading=reading)
    if findings.image_set is None:
        raise DataError(f"{path} ({findings.layout}): no pictures; missing: {'; '.join(findings.missing)}")
    image_set = findings.image_set
    counts = [_count(image_set, part) for part in Part if len(image_set.rows(part))]
    report = CheckReport(
        findings.layout,
        image_set.name,
        len(image_set.class_names),
        counts,
        findings.missing,
        [*findings.notes, *([left_out(findings.others)] if findings.others else [])],
    )
    report.broken, report.copies = _decode_all(image_set, workers)
    if sheet_dir is not None:
        report.sheets = [
            contact_sheet(image_set, count.part, sheet_dir / f"sheet-{count.part.value}.png")
            for count in counts
        ]
    return report


def _count(image_set: ImageSet, part: Part) -> PartCount:
    counts = image_set.counts(part)
    counts = counts[counts > 0]
    return PartCount(part, len(counts), int(counts.sum()), int(counts.min()), int(counts.max()))


def _decode_all(image_set: ImageSet, workers: int | None) -> tuple[list[str], list[tuple[str, ...]]]:
    broken: dict[int, str] = {}
    same: dict[bytes, list[int]] = defaultdict(list)
    for start, results in in_chunks(
        _decode_some, image_set.source, chunk=_CHUNK, workers=workers, title="decoding"
    ):
        for index, (digest, fault) in enumerate(results, start):
            if fault:
                broken[index] = fault
            else:
                same[digest].append(index)
    copies = [
        tuple(image_set.describe(row) for row in sorted(rows))
        for rows in same.values()
        if len(rows) > 1 and len(np.unique(image_set.labels[rows])) > 1
    ]
    return [broken[index] for index in sorted(broken)], sorted(copies)


def _decode_some(source: ImageSource, start: int, stop: int) -> list[tuple[bytes, str]]:
    """Digest and fault (empty where there is none) of each picture, decoded whole."""
    found = []
    for index in range(start, stop):
        try:
            source.read(index)
            found.append((source.digest(index), ""))
        except DataError as error:
            found.append((b"", str(error)))
    return found
