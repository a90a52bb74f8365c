"""The parts a bank's images belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from wdae.errors import BankError, nearest


class Part(StrEnum):
    """What an image is for. ``parts`` tensors hold the position in ``list(Part)``.

    >>> [part.value for part in Part], Part("novel").code
    (['base-train', 'base-held-out', 'validation', 'novel'], 3)
    """

    BASE_TRAIN = "base-train"
    BASE_HELD_OUT = "base-held-out"
    VALIDATION = "validation"
    NOVEL = "novel"

    @property
    def code(self) -> int:
        """The number that stands for this part in a ``parts`` tensor.

        >>> Part.NOVEL.code
        3
        """
        return list(Part).index(self)

    @property
    def is_base(self) -> bool:
        """Whether the part holds images of base classes."""
        return self in (Part.BASE_TRAIN, Part.BASE_HELD_OUT)

    @property
    def kind(self) -> str:
        """The kind of class with images in this part: base, validation or novel. A class has one kind."""
        return "base" if self.is_base else self.value

    @staticmethod
    def parse(name: str) -> Part:
        """The part called ``name``; underscores and capitals are forgiven.

        >>> Part.parse("Base_Train")
        <Part.BASE_TRAIN: 'base-train'>
        """
        try:
            return Part(name.strip().lower().replace("_", "-"))
        except ValueError:
            raise BankError(f"unknown part {name!r}{nearest(name, [part.value for part in Part])}") from None


def mixed_kinds(label_parts: Iterable[int], names: Sequence[str]) -> list[str]:
    """The classes with images of more than one kind, each with its kinds.

    Args:
        label_parts: ``label * len(Part) + code`` of every pair of a class and a part that has images of it.
        names: of the classes.

    >>> mixed_kinds([0, 1, 3], ["cat", "okapi"])
    ["'cat' (base and novel)"]
    """
    kinds: dict[int, set[str]] = {}
    for pair in label_parts:
        label, code = divmod(pair, len(Part))
        kinds.setdefault(label, set()).add(list(Part)[code].kind)
    return [f"{names[label]!r} ({' and '.join(sorted(k))})" for label, k in kinds.items() if len(k) > 1]
