"""FEAT: class means that a transformer adapts to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean


class Feat(LearnedMethod):
    """Class means attend to each other before queries are compared with them.

    Han-Jia Ye, Hexiang Hu, De-Chuan Zhan, Fei Sha, "Few-Shot Learning via Embedding Adaptation with
    Set-to-Set Functions", CVPR 2020, https://arxiv.org/abs/1812.03664: one head of self-attention, with
    a residual.

    Departures: features are frozen; there is no layer normalisation after the residual, and no contrastive
    term, which adapts the queries' features; scores are scaled cosines; the attention's last map starts at
    zero, so that it starts at nearest mean.
    """

    name = "feat"
    about = "class means adapted to each other by self-attention"
    paper = "Ye 2020"
    joint: ClassVar[bool] = False
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY

    def __init__(self, setting: Setting, dropout: float = 0.5) -> None:
        super().__init__(setting)
        dim = setting.dim
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.last = nn.Linear(dim, dim)
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, std=(2.0 / (2 * dim)) ** 0.5, generator=setting.generator)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.dropout = dropout

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Attention over the episode's classes, each its mean."""
        means = unit(masked_mean(unit(support.features), support.mask))  # [E, n, D]
        affinity = self.query(means) @ self.key(means).transpose(-1, -2) / self.dim**0.5
        adapted = self.last(torch.softmax(affinity, -1) @ self.value(means))
        if self.training and self.dropout > 0:
            keep = torch.rand(adapted.shape, generator=generator, device=adapted.device) >= self.dropout
            adapted = adapted * keep / (1 - self.dropout)
        return WeightScorer(means + adapted, None, self.scale)
