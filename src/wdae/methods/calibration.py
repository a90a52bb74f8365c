"""Scores whose softmax is a probability, base and novel classes in one space.

A class's score is ``a · γ cos(z, w) + b``. For base classes ``a`` is 1, ``b`` is 0 and γ the gain that suits
held-out images. A novel class has been seen a few times only, so its weight fits less well than a learned
one. It gets ``a`` and ``b`` of its number of shots, found on pseudo-novel classes, and a prior: by default
half of all images are expected to be of novel classes, as in the paper's evaluation, but no more than a tenth
of each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from wdae.errors import RecipeError
from wdae.methods.base import WeightScorer
from wdae.nn.space import FeatureSpace

WAYS = 5
"""Pseudo-novel classes at once; of fewer novel classes a smaller share of images is expected."""


@dataclass(frozen=True)
class Calibration:
    """How cosines become scores whose softmax is a probability.

    Attributes:
        gain: γ of base classes, fitted on held-out images.
        slopes, offsets: of novel classes, by number of shots; ``slope · gain · cos + offset``, for classes
            that are all equally likely.
        novel_share: the share of images expected to be of novel classes, all together.
        familiarity: quantiles of the largest score on held-out base images, evenly spaced from 0 to 1;
            empty where there were none.
        figures: how well it works, on images that it was not found on.
    """

    gain: float
    slopes: Mapping[int, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)
    familiarity: tuple[float, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    novel_share: float = 0.5

    def of_shots(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and offset, without the prior, of novel classes with these numbers of shots ``[...]``."""
        slope = steps_for(shots, self.slopes)
        return slope, steps_for(shots, self.offsets) if self.offsets else torch.zeros_like(slope)

    def prior(self, n_base: int, n_novel: int) -> float:
        """Log of how much likelier a novel class is than a base class; 0 where no offsets were found.

        >>> Calibration(1.0, offsets={1: 0.0}).prior(n_base=10, n_novel=10)
        0.0
        """
        if not self.offsets or not n_novel:
            return 0.0
        share = min(self.novel_share, self.novel_share * n_novel / WAYS)
        return math.log(share / n_novel * n_base / (1 - share))

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

    def describe(self) -> dict[str, dict[str, float]]:
        """Slopes and offsets, numbers of shots as text."""
        maps = {"slopes": self.slopes, "offsets": self.offsets}
        return {key: {str(k): v for k, v in sorted(values.items())} for key, values in maps.items()}

    def as_json(self) -> dict[str, Any]:
        """For the file of a method; numbers of shots become text there."""
        return asdict(self) | self.describe()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Calibration:
        """From the file of a method."""
        maps = {key: {int(k): float(v) for k, v in value[key].items()} for key in ("slopes", "offsets")}
        return cls(
            value["gain"],
            **maps,
            familiarity=tuple(value["familiarity"]),
            figures=value["figures"],
            novel_share=value["novel_share"],
        )


def interpolate(curve: tuple[float, ...], share: float) -> float:
    """The value of an evenly spaced curve at a share of its length."""
    place = share * (len(curve) - 1)
    low = min(int(place), len(curve) - 2) if len(curve) > 1 else 0
    high = min(low + 1, len(curve) - 1)
    return curve[low] + (place - low) * (curve[high] - curve[low])


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

    Shapes: slope, offset ``[E, 1, n]``.
    """

    slope: Tensor = field(default_factory=lambda: torch.ones(()))
    offset: Tensor = field(default_factory=lambda: torch.zeros(()))
    space: FeatureSpace | None = None

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores of queries ``[E, Q, D]``, as they come from the backbone."""
        scores = super().__call__(queries if self.space is None else self.space.features(queries))
        n_base = scores.shape[-1] - self.novel.shape[-2]
        scores[..., n_base:] = scores[..., n_base:] * self.slope + self.offset
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
    offset = offset + balance.prior(n_base, shots.shape[-1])
    return BalancedScorer(scorer.novel, scorer.base, balance.gain, slope, offset, space)
