"""Prototypical networks: squared distance to the mean of each class's embedded shots."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.methods.learned import LearnedMethod
from wdae.nn.cosine import unit
from wdae.nn.maps import identity_map, masked_mean


class Prototypical(LearnedMethod):
    """Snell, Swersky, Zemel 2017, "Prototypical networks for few-shot learning", eq. 1 and 2.

    Departures: the embedding is a linear map on frozen features, started at the identity; distances of
    unit-length features are small, so a learned scale stands before them (γ/2 at the start). Base classes,
    which the paper has none of, have their learned weight, at unit length, as prototype.
    """

    name = "prototypical"
    about: ClassVar[str] = "squared distance to class means in a learned embedding"
    paper: ClassVar[str] = "Snell 2017"
    training_defaults: ClassVar[dict[str, Any]] = {"shots": (1, 5)}

    def __init__(
        self, dim: int, n_base: int, scale: float = 10.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(dim, n_base, scale)
        self.embed = identity_map(dim)

    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """Prototypes as a linear classifier: ``−‖f − p‖²/2`` is ``f·p − ‖p‖²/2`` but for a common term."""
        prototypes: Tensor = self.embed(masked_mean(support.features, support.mask))  # [E, n, D]
        if joint:
            known = self.embed(unit(base.weights)).expand(prototypes.shape[0], -1, -1)
            prototypes = torch.cat([known, prototypes], dim=1)
        bias = -prototypes.square().sum(-1) / 2
        scorer = LinearScorer(prototypes, bias, self.scale)
        return lambda queries: scorer(self.embed(queries))
