"""Which classes of a benchmark are base, validation and novel: facts, kept in three small text files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from wdae.errors import DataError, nearest
from wdae.parts import Part

BENCHMARKS = ("mini-imagenet", "tiered-imagenet", "imagenet-fs")
FILES = {"train": Part.BASE_TRAIN, "val": Part.VALIDATION, "test": Part.NOVEL}
"""How the files of MiniImageNet and tieredImageNet call their parts."""

Reading = Literal["names", "positions"]
"""How the ImageNet-FS split is read: by its own class names, or its positions in the sorted class list.

The paper's authors' code does the latter; the former is what the split says, and the default.
"""


@dataclass(frozen=True)
class ClassSplit:
    """The classes (WordNet ids) of a benchmark by kind.

    Args:
        superclasses: class → superclass, for benchmarks that have them (tieredImageNet).
        base_validation: the base classes whose queries count in validation, and ``base_test`` those that
            count in the test; both empty but for ImageNet-FS.

    >>> split = ClassSplit("mine", base=("cat", "dog"), validation=("ant",), novel=("okapi",))
    >>> split.classes, split.part_of()["okapi"].value
    (('cat', 'dog', 'ant', 'okapi'), 'novel')
    """

    name: str
    base: tuple[str, ...]
    validation: tuple[str, ...]
    novel: tuple[str, ...]
    superclasses: dict[str, str] = field(default_factory=dict)
    base_validation: tuple[str, ...] = ()
    base_test: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes: base, then validation, then novel."""
        return self.base + self.validation + self.novel

    def part_of(self) -> dict[str, Part]:
        """Class → the part its training images belong to."""
        kinds = ((self.base, Part.BASE_TRAIN), (self.validation, Part.VALIDATION), (self.novel, Part.NOVEL))
        return {wnid: part for wnids, part in kinds for wnid in wnids}


@cache
def load_split(name: str, reading: Reading = "names") -> ClassSplit:
    """The split of one benchmark.

    Args:
        name: one of ``BENCHMARKS``.
        reading: for ImageNet-FS only.

    >>> split = load_split("mini-imagenet")
    >>> len(split.base), len(split.validation), len(split.novel)
    (64, 16, 20)
    """
    if name not in BENCHMARKS:
        raise DataError(f"no split is known for {name!r}{nearest(name, BENCHMARKS)}")
    if reading not in ("names", "positions"):
        raise DataError(f"the split is read by 'names' or by 'positions', not by {reading!r}")
    text = files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return _by_position(name, lines, reading) if name == "imagenet-fs" else _by_part(name, lines)


def _by_part(name: str, lines: list[list[str]]) -> ClassSplit:
    kinds: dict[str, list[str]] = {"base": [], "validation": [], "novel": []}
    superclasses = {}
    for kind, superclass, *wnids in lines:
        kinds[kind] += wnids
        if superclass != "-":
            superclasses.update(dict.fromkeys(wnids, superclass))
    return ClassSplit(
        name, tuple(kinds["base"]), tuple(kinds["validation"]), tuple(kinds["novel"]), superclasses
    )


def _by_position(name: str, lines: list[list[str]], reading: Reading) -> ClassSplit:
    entries = [entry.split(":") for line in lines for entry in line]
    classes = [wnid for wnid, _ in entries]
    if reading == "positions":
        classes.sort()
    purposes = [purpose for _, purpose in entries]

    def those(wanted: str) -> tuple[str, ...]:
        return tuple(wnid for wnid, purpose in zip(classes, purposes, strict=True) if purpose in wanted)

    return ClassSplit(
        name, those("bB"), those("n"), those("N"), base_validation=those("b"), base_test=those("B")
    )
