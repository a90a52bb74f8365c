"""A part of a row of things that several machines share out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from wdae.errors import RecipeError

T = TypeVar("T")
_MOST = 100_000


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``parts``, from 1 on.

    >>> Shard.parse("2/3").of(range(0, 70, 10))
    [20, 30]
    """

    number: int
    parts: int

    @classmethod
    def parse(cls, word: str) -> Shard:
        """From ``2/8``."""
        first, slash, second = word.partition("/")
        if not (slash and first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
            raise RecipeError(f"a shard is written 2/8, the second of eight; got {word!r}")
        shard = cls(int(first), int(second))
        if not 1 <= shard.number <= shard.parts <= _MOST:
            raise RecipeError(
                f"shards are counted from 1/{shard.parts} to {shard.parts}/{shard.parts}; got {word!r}"
            )
        return shard

    def of(self, items: Sequence[T]) -> list[T]:
        """This part of a row of things; all parts in order are the whole row."""
        at = [len(items) * n // self.parts for n in (self.number - 1, self.number)]
        return list(items[at[0] : at[1]])

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"
