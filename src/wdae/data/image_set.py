"""A set of labelled pictures with its parts: what every reader returns and everything else takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wdae.data.decode import Pixels
from wdae.data.source import ImageSource, content_digest
from wdae.errors import DataError, listed
from wdae.parts import Part, mixed_kinds

Labels = npt.NDArray[np.int64]
Parts = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures, their classes, and what each is for.

    Args:
        name: how reports call it.
        source: the pictures themselves.
        class_names: base classes first, then validation, then novel ones, where a reader has the choice.
        query_only: pictures that may be classified but never learned from (ILSVRC's validation images in the
            all-way protocol); None where there are none.
        superclasses: for each class the group it belongs to, where the benchmark has groups.
        notes: what a person should know about the set and that does not hinder its use.

    Shapes:
        labels int64 [M]; parts uint8 [M], positions in ``list(Part)``; query_only bool [M].

    >>> from wdae.data import FileSource
    >>> source = FileSource(("a.jpg", "b.jpg", "c.jpg"))
    >>> images = ImageSet("mine", source, np.array([0, 0, 1]), np.zeros(3, np.uint8), ("cat", "dog"))
    >>> len(images), images.counts(Part.BASE_TRAIN).tolist()
    (3, [2, 1])
    """

    name: str
    source: ImageSource
    labels: Labels
    parts: Parts
    class_names: tuple[str, ...]
    query_only: npt.NDArray[np.bool_] | None = None
    superclasses: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.source)
        if rows == 0:
            raise DataError(f"{self.name}: no pictures at all; give at least one for each class")
        lengths = [len(self.labels), len(self.parts)]
        if self.query_only is not None:
            lengths.append(len(self.query_only))
        if any(length != rows for length in lengths):
            raise DataError(
                f"{self.name}: {rows} pictures, but labels and parts for {lengths}; give one each"
            )
        if self.labels.min() < 0 or self.labels.max() >= len(self.class_names):
            raise DataError(f"{self.name}: labels must lie in 0 … {len(self.class_names) - 1}")
        if self.parts.max() >= len(Part):
            raise DataError(f"{self.name}: parts must lie in 0 … {len(Part) - 1}")
        repeated = [name for name, times in Counter(self.class_names).items() if times > 1]
        if repeated:
            raise DataError(f"{self.name}: class names must differ; repeated: {listed(repeated)}")
        mixed = mixed_kinds(np.unique(self.labels * len(Part) + self.parts).tolist(), self.class_names)
        if mixed:
            raise DataError(
                f"{self.name}: a class is base, validation or novel, and only one of them;"
                f" in more than one: {listed(mixed)}"
            )

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Pixels:
        """Picture ``index`` as uint8 [height, width, 3]."""
        return self.source.read(index)

    def describe(self, index: int) -> str:
        """A name a person can find picture ``index`` by."""
        return self.source.describe(index)

    def rows(self, part: Part) -> Labels:
        """The numbers of the pictures of one part, ascending."""
        return np.flatnonzero(self.parts == part.code).astype(np.int64)

    def counts(self, part: Part) -> npt.NDArray[np.int64]:
        """Pictures per class in one part, int64 [C]."""
        return np.bincount(self.labels[self.rows(part)], minlength=len(self.class_names)).astype(np.int64)

    def classes_of(self, part: Part) -> list[int]:
        """The classes with pictures in one part, ascending."""
        return [int(label) for label in np.unique(self.labels[self.rows(part)])]

    def select(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> ImageSet:
        """The set with these pictures only; classes keep their numbers."""
        at = np.asarray(indices, dtype=np.int64)
        return replace(
            self,
            source=self.source.select(at.tolist()),
            labels=self.labels[at],
            parts=self.parts[at],
            query_only=None if self.query_only is None else self.query_only[at],
        )


def hold_out(image_set: ImageSet, per_class: int | npt.NDArray[np.int64], seed: int) -> ImageSet:
    """Move ``per_class`` pictures of each base class, drawn at random, from base-train to base-held-out.

    Args:
        per_class: one number for all, or one for each of the set's classes ``[C]``.

    >>> from wdae.data import FileSource
    >>> source = FileSource(tuple(f"{i}.jpg" for i in range(6)))
    >>> images = ImageSet("mine", source, np.array([0, 0, 0, 1, 1, 1]), np.zeros(6, np.uint8), ("cat", "dog"))
    >>> hold_out(images, per_class=1, seed=0).counts(Part.BASE_HELD_OUT).tolist()
    [1, 1]
    """
    wanted = np.broadcast_to(np.asarray(per_class, np.int64), (len(image_set.class_names),))
    if (wanted < 0).any() or seed < 0:
        raise DataError(f"cannot hold out {per_class} pictures a class with seed {seed}; give 0 or more")
    counts = image_set.counts(Part.BASE_TRAIN)
    short = [
        f"{image_set.class_names[label]!r} has {counts[label]}"
        for label in image_set.classes_of(Part.BASE_TRAIN)
        if counts[label] <= wanted[label]
    ]
    if short:
        raise DataError(
            f"{image_set.name}: cannot hold out {per_class} pictures of each base class and keep one to learn"
            f" from: {listed(short)}; hold out fewer (--held-out, data.held_out)"
        )
    parts = image_set.parts.copy()
    train = image_set.rows(Part.BASE_TRAIN)
    # One draw a picture, then the lowest of each class. A picture more or less anywhere changes the draws of
    # those behind it: whoever draws again to know the same pictures compares held_out_digests.
    draws = np.random.default_rng(seed).random(len(train))
    order = np.lexsort((draws, image_set.labels[train]))
    ordered = image_set.labels[train][order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    parts[train[order[rank < wanted[ordered]]]] = Part.BASE_HELD_OUT.code
    return replace(image_set, parts=parts)


def held_out_digests(image_set: ImageSet) -> dict[str, str]:
    """For each class with held-out pictures, what tells these from others: a digest of their file names."""
    names: dict[int, list[str]] = {}
    for row in image_set.rows(Part.BASE_HELD_OUT).tolist():
        names.setdefault(int(image_set.labels[row]), []).append(Path(image_set.describe(row)).name)
    return {
        image_set.class_names[label]: content_digest(
            "\n".join(sorted(some)).encode("utf-8", "surrogateescape")
        ).hex()[:16]
        for label, some in names.items()
    }
