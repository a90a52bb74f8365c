"""Prototypical networks: squared distance to the mean of each class's embedded shots."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.methods.learned import ANY_SHOTS, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import identity_linear, masked_mean


class Prototypical(LearnedMethod):
    """Snell, Swersky, Zemel 2017, "Prototypical networks for few-shot learning", eq. 1 and 2.

    Departures: the embedding is a linear map on frozen features, started at the identity; distances of
    unit-length features are small, so a learned scale stands before them (γ/2 at the start). Base classes,
    which the paper has none of, have their learned weight, at unit length, as prototype, and class means are
    brought to unit length too before they are embedded, so that learning begins at nearest mean by cosine.
    Chosen on validation classes of the embedded bank, 5 shots: 65.2 % among base and novel classes, and
    61.3 % with means of their own length.

    Args:
        unit_length: bring class means to unit length.
    """

    name = "prototypical"
    about: ClassVar[str] = "squared distance to class means in a learned embedding"
    paper: ClassVar[str] = "Snell 2017"
    training_defaults = ANY_SHOTS

    def __init__(self, setting: Setting, unit_length: bool = True) -> None:
        super().__init__(setting)
        self.unit_length = unit_length
        self.embed = identity_linear(setting.dim)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Prototypes as a linear classifier: ``−‖f − p‖²/2`` is ``f·p − ‖p‖²/2`` but for a common term."""
        means = masked_mean(support.features, support.mask)  # [E, n, D]
        rows, bias = self._linear(unit(means) if self.unit_length else means)
        if joint:
            known, known_bias = self._linear(unit(base.weights))
            rows = torch.cat([known.expand(len(rows), -1, -1), rows], dim=1)
            bias = torch.cat([known_bias.expand(len(bias), -1), bias], dim=1)
        return LinearScorer(rows, bias, self.scale)

    def _linear(self, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Rows for queries that are not embedded (the map goes to the few prototypes), and biases."""
        embedded: Tensor = self.embed(prototypes)
        return embedded @ self.embed.weight, -embedded.square().sum(-1) / 2
