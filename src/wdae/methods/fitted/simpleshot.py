"""SimpleShot: nearest mean of centred, unit-length features."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.learned import LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean


class SimpleShot(LearnedMethod):
    """Nearest class mean after subtracting the mean of all base features (CL2N).

    Yan Wang, Wei-Lun Chao, Kilian Weinberger, Laurens van der Maaten, "SimpleShot: Revisiting
    Nearest-Neighbor Classification for Few-Shot Learning", 2019, https://arxiv.org/abs/1911.04623.

    Departures: scores are scaled cosines with the class means, not Euclidean distances to them. A base class
    is its learned weight, at unit length and centred. Chosen on validation classes of an earlier embedded
    bank, by accuracy among base and novel classes, over weights centred by their own mean, not centred, and
    means of transformed base-train features.
    """

    name = "simpleshot"
    about = "nearest mean of centred, unit-length features"
    paper = "Wang (Y.) 2019"
    centre: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(setting.dim))

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The mean of all base-train features."""
        self.centre.copy_(pool.features.float().mean(0))

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Cosine with class means, all centred."""
        novel = masked_mean(unit(support.features - self.centre), support.mask)
        known = unit(base.weights) - self.centre if joint else None
        scorer = WeightScorer(novel, known, self.scale)
        return lambda queries: scorer(queries - self.centre)
