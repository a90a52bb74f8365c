"""Nearest mean after the SimpleShot transforms: centring, then unit length."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.learned import LearnedMethod
from wdae.nn.cosine import unit
from wdae.nn.maps import masked_mean


class SimpleShot(LearnedMethod):
    """Wang et al. 2019, "SimpleShot: revisiting nearest-neighbor classification ..." (its CL2N).

    Features lose the mean of all base-train features and are brought to unit length; classes are the means
    of what results. Nothing is learned but that mean.

    Departures: scores are scaled cosines with the class means where the paper takes Euclidean distances to
    them. Base classes are their learned weights, at unit length and centred.
    """

    name = "simpleshot"
    about: ClassVar[str] = "nearest mean of centred, unit-length features"
    paper: ClassVar[str] = "Wang (Y.) 2019"
    centre: Tensor

    def __init__(
        self, dim: int, n_base: int, scale: float = 10.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(dim, n_base, scale)
        self.scale.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(dim))

    def prepare(self, pool: ClassSet, generator: torch.Generator) -> None:
        """The mean of all base-train features."""
        self.centre.copy_(pool.features.float().mean(0))

    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """Cosine with class means, all centred."""
        novel = masked_mean(unit(support.features - self.centre), support.mask)
        known = unit(base.weights) - self.centre if joint else None
        scorer = WeightScorer(novel, known, self.scale)
        return lambda queries: scorer(queries - self.centre)
