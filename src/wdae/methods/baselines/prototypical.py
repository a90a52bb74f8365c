"""Prototypical networks."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.methods.learned import ANY_SHOTS, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import identity_linear, masked_mean


class Prototypical(LearnedMethod):
    """Squared Euclidean distance to the mean of each class's embedded shots.

    Jake Snell, Kevin Swersky, Richard Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017,
    https://arxiv.org/abs/1703.05175 (eq. 1 and 2).

    Departures: the embedding is a linear map on frozen features, started at the identity; a learned scale
    multiplies the distances, which are small for unit-length features (γ/2 at the start). The prototype of a
    base class, which the paper has none of, is its learned weight at unit length; class means are brought to
    unit length too before they are embedded, so learning begins at nearest mean by cosine. Chosen on
    validation classes of an earlier embedded bank, by accuracy among base and novel classes, over means of
    their own length.

    Args:
        unit_length: bring class means to unit length.
    """

    name = "prototypical"
    about = "squared distance to class means in a learned embedding"
    paper = "Snell 2017"
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
