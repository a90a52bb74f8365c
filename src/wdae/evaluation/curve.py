"""The base–novel curve: what base classes lose as novel classes gain, and the area below it.

A constant t is added to the scores of all novel classes. The larger it is, the more queries are taken for a
novel class: the accuracy of novel queries among all classes rises and that of base queries falls. The area
below the curve judges scores without choosing t; it is the area under the seen–unseen curve of generalised
zero-shot learning (Wei-Lun Chao et al., "An Empirical Study and Analysis of Generalized Zero-Shot Learning
for Object Recognition in the Wild", ECCV 2016, https://arxiv.org/abs/1605.04253).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wdae.errors import EpisodeError


class Point(NamedTuple):
    """The offset of novel scores, and the accuracies of base and novel queries among all classes there."""

    offset: float
    base: float
    novel: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracies of base and novel queries among all classes, for every offset of novel scores.

    Between two neighbouring ``offsets`` no answer changes: the accuracies of index i hold for offsets above
    ``offsets[i]``, up to and with ``offsets[i + 1]``. The first offset is −∞: every answer is a base class.

    Shapes: offsets (rising), base (falling), novel (rising) ``[P]``, float64.

    >>> scores = [[2.0, 0.0, 1.0], [0.0, 1.0, 0.5], [3.0, 0.0, 2.5]]
    >>> curve = base_novel_curve(scores, [0, 1, 2], n_base=2)
    >>> curve.points
    [Point(offset=-inf, base=1.0, novel=0.0), Point(offset=0.5, base=0.5, novel=1.0), \
Point(offset=1.0, base=0.0, novel=1.0)]
    >>> curve.area, curve.at(0.7)
    (0.75, Point(offset=0.7, base=0.5, novel=1.0))
    """

    offsets: Tensor
    base: Tensor
    novel: Tensor

    @classmethod
    def of(cls, flips: Tensor, right: Tensor, is_novel: Tensor) -> Curve:
        """The curve of queries that turn from a base to a novel class above ``flips`` ``[Q]``.

        Args:
            flips: best base minus best novel score.
            right: whether a query is right among the classes of its own kind ``[Q]``.
            is_novel: whether it is of a novel class ``[Q]``; there are queries of both kinds.
        """
        offsets, place = flips.double().unique(return_inverse=True)  # rising

        def count(some: Tensor) -> Tensor:
            counted = torch.bincount(place[some & right], minlength=len(offsets)).cumsum(0)
            return torch.cat([counted.new_zeros(1), counted]).double()

        lost, won = count(~is_novel), count(is_novel)
        first = offsets.new_full((1,), -torch.inf)
        base, novel = (lost[-1] - lost) / (~is_novel).sum(), won / is_novel.sum()
        return cls(torch.cat([first, offsets]), base, novel)

    @property
    def points(self) -> list[Point]:
        """One for each stretch of offsets in which no answer changes, from base to novel."""
        return [Point(*row) for row in torch.stack([self.offsets, self.base, self.novel], 1).tolist()]

    @property
    def area(self) -> float:
        """The area below the curve, between 0 and 1, by trapezoids."""
        return float(((self.base[:-1] - self.base[1:]) * (self.novel[:-1] + self.novel[1:]) / 2).sum())

    def at(self, offset: float) -> Point:
        """The accuracies when an offset is added to novel scores; 0: as the scores are."""
        place = int(torch.searchsorted(self.offsets, torch.tensor(float(offset), dtype=torch.float64)))
        return Point(float(offset), *self._accuracies(place - 1))

    def keeping(self, base: float) -> Point:
        """The highest novel accuracy where base accuracy is at least so much, at the largest such offset."""
        kept = int((self.base >= base - 1e-9).sum()) - 1
        if kept < 0:
            raise EpisodeError(f"base accuracy is never {base:.2%}; it is {float(self.base[0]):.2%} at most")
        after = self.offsets[kept + 1] if kept + 1 < len(self.offsets) else torch.inf
        return Point(float(after), *self._accuracies(kept))

    def _accuracies(self, place: int) -> tuple[float, float]:
        place = max(0, place)
        return float(self.base[place]), float(self.novel[place])


def base_novel_curve(scores: Any, labels: Any, n_base: int) -> Curve:
    """The curve from scores ``[Q, n_base + n]`` (base classes first) and labels ``[Q]`` over all classes.

    It is exact: each query has one offset at which its answer turns, so that sorting them is enough.
    """
    scores, labels = torch.as_tensor(scores), torch.as_tensor(labels)
    is_novel = labels >= n_base
    if not bool(is_novel.any()) or bool(is_novel.all()):
        raise EpisodeError(
            f"a base-novel curve needs queries of base and of novel classes; got {int((~is_novel).sum())} "
            f"and {int(is_novel.sum())}"
        )
    base, novel = scores[:, :n_base].max(1), scores[:, n_base:].max(1)
    right = torch.where(is_novel, novel.indices + n_base, base.indices) == labels
    return Curve.of(base.values - novel.values, right, is_novel)


def areas(flips: Tensor, right: Tensor, is_novel: Tensor) -> Tensor:
    """The area below each episode's curve ``[E]``, from what :meth:`Curve.of` takes, each ``[E, Q]``.

    It is the share of pairs of a base and a novel query that are right among their own kind, and of which
    the novel one turns first (both at once: half a pair).
    """
    turns = flips.masked_fill(~(right & is_novel), torch.inf).sort(-1).values
    flips, kept = flips.contiguous(), right & ~is_novel
    before = torch.searchsorted(turns, flips) + torch.searchsorted(turns, flips, right=True)
    pairs = is_novel.sum(-1).double() * (~is_novel).sum(-1)
    return ((before * kept).sum(-1) / 2 / pairs).to(flips.dtype)
