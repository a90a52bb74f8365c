"""Scores of base and novel classes in one space: the constant that puts them on a par."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wdae.methods.base import Support, WeightScorer
from wdae.methods.calibration import Calibration
from wdae.methods.shots import steps_for
from wdae.nn.space import FeatureSpace


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
    support: Support,
    n_base: int,
    balance: Calibration | None,
    space: FeatureSpace | None,
) -> WeightScorer:
    """The scorer with its novel scores balanced for the numbers of shots of a support set."""
    if balance is None:
        return (
            scorer if space is None else BalancedScorer(scorer.novel, scorer.base, scorer.scale, space=space)
        )
    shots = support.shots.unsqueeze(1)  # [E, 1, n]
    slope = steps_for(shots, balance.slopes)
    offset = steps_for(shots, balance.offsets) + balance.prior(n_base, shots.shape[-1])
    return BalancedScorer(scorer.novel, scorer.base, balance.gain, slope, offset, space)
