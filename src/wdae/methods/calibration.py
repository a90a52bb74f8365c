"""Scores whose softmax is a probability, base and novel classes in one space.

A class's score is ``a · γ cos(z, w) + b``. For base classes ``a`` is 1, ``b`` is 0 and γ the gain that suits
held-out images. A novel class has been seen a few times only, so its weight fits less well than a learned
one. It gets ``a`` and ``b`` of its number of shots, found on pseudo-novel classes, and a prior: how many of
all images are expected to be of novel classes. In an evaluation that is half of them, as in the paper, but no
more than a tenth of each; a model that people ask expects no more than what base classes can bear.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from wdae.errors import ModelError, RecipeError
from wdae.methods.base import WeightScorer
from wdae.methods.records import RISKS
from wdae.methods.records import SHOTS as SHOTS
from wdae.methods.records import WAYS as WAYS
from wdae.methods.records import interpolate as interpolate
from wdae.nn.space import FeatureSpace

HALF = 0.5
"""The share of novel images in the paper's evaluation."""


@dataclass(frozen=True)
class Calibration:
    """How cosines become scores whose softmax is a probability.

    Attributes:
        gain: γ of base classes, fitted on held-out images.
        slopes, offsets: of novel classes, by number of shots; ``slope · gain · cos + offset``, for classes
            that are all equally likely.
        novel_share: the share of images expected to be of novel classes, all together; None: that of
            ``protecting``.
        familiarity: quantiles of the largest score on held-out base images, evenly spaced from 0 to 1;
            empty where there were none.
        figures: how well it works, on images that it was not found on.
        protecting: by number of shots, the largest share with which novel classes cost base images no more
            accuracy than is allowed (:func:`wdae.calibration.protection.protecting_shares`).
        sets: by number of shots, the least probability of a base and of a novel class in a set that holds the
            true class but for each of RISKS (:func:`wdae.calibration.conformal.fit_sets`); 0: of base classes
            while there are no others.
    """

    gain: float
    slopes: Mapping[int, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)
    familiarity: tuple[float, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    novel_share: float | None = HALF
    protecting: Mapping[int, float] = field(default_factory=dict)
    sets: Mapping[int, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    def of_shots(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and offset, without the prior, of novel classes with these numbers of shots ``[...]``."""
        slope = steps_for(shots, self.slopes)
        return slope, steps_for(shots, self.offsets) if self.offsets else torch.zeros_like(slope)

    def prior(self, n_base: int, shots: Tensor) -> Tensor:
        """Log of how much likelier a novel class is than a base class, for numbers of shots ``[..., n]``.

        0 where no offsets were found, or where there is one kind of classes only.

        >>> Calibration(1.0, offsets={1: 0.0}).prior(n_base=10, shots=torch.ones(10)).unique().tolist()
        [0.0]
        """
        if not self.offsets:
            return torch.zeros(shots.shape, device=shots.device)
        share = torch.full(shots.shape, self.novel_share or HALF, dtype=torch.float64, device=shots.device)
        if self.novel_share is None and self.protecting:
            share = steps_for(shots, self.protecting).double()
        return log_odds(share, n_base)

    def threshold(self, false_alarm_rate: float) -> float:
        """The largest score below which a picture is called unknown.

        Args:
            false_alarm_rate: the share of base pictures that may be called so wrongly; 0: none ever is.
        """
        if not 0 <= false_alarm_rate <= 1:
            raise RecipeError(f"a false-alarm rate lies between 0 and 1, got {false_alarm_rate}")
        if not self.familiarity or false_alarm_rate == 0:
            return -float("inf")
        return interpolate(self.familiarity, false_alarm_rate)

    def least(self, coverage: float, shots: Tensor) -> tuple[float, Tensor]:
        """The least probability of base classes, and of novel ones ``[n]``, in a set that covers so much.

        Between the numbers of shots, and the coverages, that were tried, the nearest one and the larger one.
        More than WAYS novel classes share what is expected of all of them, so that each needs less.
        """
        if not 0.5 <= coverage <= 1 - RISKS[-1]:
            raise RecipeError(f"coverage lies between 0.5 and {1 - RISKS[-1]:g}, got {coverage}")
        if not self.sets:
            raise ModelError(
                "there is nothing to find sets of classes by: the model was learned without held-out"
                " pictures, or before there were sets; learn it again from pictures or features of its base"
                " classes"
            )
        tried = [k for k, pair in self.sets.items() if len(pair) == 2]
        if shots.numel() and not tried:
            raise ModelError("nothing is known of sets with added classes: too few base classes to play them")
        place = next(i for i, risk in enumerate(RISKS) if risk <= 1 - coverage + 1e-9)
        nearest = [min((abs(math.log(k / n)), k) for k in tried)[1] for n in shots.tolist()]
        base = min(self.sets[k][0][place] for k in {0, *nearest})
        least = torch.tensor([self.sets[k][1][place] for k in nearest], dtype=torch.float64)
        return base, least * min(1.0, WAYS / max(1, len(nearest)))

    def describe(self) -> dict[str, dict[str, float]]:
        """Slopes and offsets, numbers of shots as text."""
        return {"slopes": _as_text(self.slopes), "offsets": _as_text(self.offsets)}

    def as_json(self) -> dict[str, Any]:
        """For the file of a method; numbers of shots become text there."""
        sets = {str(k): v for k, v in sorted(self.sets.items())}
        value = asdict(self) | self.describe() | {"protecting": _as_text(self.protecting), "sets": sets}
        return {k: v for k, v in value.items() if v or k not in ("protecting", "sets")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Calibration:
        """From the file of a method."""
        keys = ("slopes", "offsets", "protecting")
        maps = {key: {int(k): float(v) for k, v in value.get(key, {}).items()} for key in keys}
        return cls(
            value["gain"],
            **maps,
            familiarity=tuple(value["familiarity"]),
            figures=value["figures"],
            novel_share=value["novel_share"],
            sets={int(k): tuple(map(tuple, v)) for k, v in value.get("sets", {}).items()},
        )


def log_odds(share: Tensor, n_base: int) -> Tensor:
    """Log of how much likelier a novel class is than a base class, if novel ones have a share of all images.

    Args:
        share: ``[..., n]``, of all novel classes together; fewer than five of them have less of it.
    """
    n_novel = share.shape[-1]
    if not n_novel or not n_base:
        return torch.zeros(share.shape, device=share.device)
    part = min(1.0, n_novel / WAYS)  # logarithms are added up: products of tiny shares would be zero
    return (share.log() + math.log(part / n_novel * n_base) - torch.log1p(-part * share)).float()


def _as_text(values: Mapping[int, float]) -> dict[str, float]:
    return {str(k): v for k, v in sorted(values.items())}


def step_for(shots: float, steps: Mapping[int, float]) -> float:
    """ε for a number of shots: as chosen, or interpolated in log K between those chosen.

    >>> step_for(1, {1: 1.0, 4: 0.5}), step_for(2, {1: 1.0, 4: 0.5}), step_for(50, {1: 1.0, 4: 0.5})
    (1.0, 0.75, 0.5)
    """
    known = sorted(steps)
    if not known:
        return 1.0
    if shots in steps:
        return steps[int(shots)]
    if shots <= known[0]:
        return steps[known[0]]
    for low, high in itertools.pairwise(known):
        if shots <= high:
            share = math.log(shots / low) / math.log(high / low)
            return steps[low] + share * (steps[high] - steps[low])
    return steps[known[-1]]


def steps_for(shots: Tensor, steps: Mapping[int, float]) -> Tensor:
    """ε of each class: numbers of shots ``[...]`` → ``[...]``."""
    values, index = shots.unique(return_inverse=True)
    table = torch.tensor([step_for(k, steps) for k in values.tolist()], device=shots.device)
    return table[index]


@dataclass(frozen=True)
class BalancedScorer(WeightScorer):
    """A weight scorer whose novel scores become ``slope · score + offset``, in a space of its own.

    Base scores may, too.

    Shapes: slope, offset ``[E, 1, n]``; base_slope, base_offset ``[N]`` or ``[E, 1, N]``.
    """

    slope: Tensor = field(default_factory=lambda: torch.ones(()))
    offset: Tensor = field(default_factory=lambda: torch.zeros(()))
    space: FeatureSpace | None = None
    base_slope: Tensor | None = None
    base_offset: Tensor | None = None

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores of queries ``[E, Q, D]``, as they come from the backbone."""
        scores = super().__call__(queries if self.space is None else self.space.features(queries))
        n_base = scores.shape[-1] - self.novel.shape[-2]
        scores[..., n_base:] = scores[..., n_base:] * self.slope + self.offset
        if self.base_slope is not None and self.base_offset is not None:
            scores[..., :n_base] = scores[..., :n_base] * self.base_slope + self.base_offset
        return scores


def balance_scores(
    scorer: WeightScorer,
    shots: Tensor,
    n_base: int,
    balance: Calibration | None,
    space: FeatureSpace | None = None,
) -> WeightScorer:
    """The scorer with its novel scores balanced for numbers of shots ``[E, n]``."""
    if balance is None:
        return (
            scorer if space is None else BalancedScorer(scorer.novel, scorer.base, scorer.scale, space=space)
        )
    slope, offset = balance.of_shots(shots.unsqueeze(1))  # [E, 1, n]
    offset = offset + balance.prior(n_base, shots).unsqueeze(1)
    return BalancedScorer(scorer.novel, scorer.base, balance.gain, slope, offset, space)
