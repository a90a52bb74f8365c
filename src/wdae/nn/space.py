"""The space that features and class weights are compared in (wDAE-GNN+ alone)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.nn.cosine import unit


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """``z' = unit(unit(sign(z) |z|^p) − c)``: a power transform, then centring.

    It damps a few large components and the mean direction, which all classes share. Base weights are learned
    anew in this space.

    Shapes: centre ``[D]``; weights ``[N, D]``, unit rows.
    """

    power: float
    centre: Tensor
    weights: Tensor
    scale: float

    def features(self, features: Tensor) -> Tensor:
        """Features ``[..., D]`` brought into the space, unit rows."""
        return unit(powered(features, self.power) - self.centre.to(features.device))

    def to(self, device: torch.device | str) -> FeatureSpace:
        """The same on another device."""
        return FeatureSpace(self.power, self.centre.to(device), self.weights.to(device), self.scale)


def powered(features: Tensor, power: float) -> Tensor:
    """``unit(sign(z) |z|^p)`` of features ``[..., D]``.

    >>> powered(torch.tensor([[4.0, -9.0]]), 0.5).mul(13**0.5).tolist()
    [[2.0, -3.0]]
    """
    if power != 1.0:
        features = features.sign() * features.abs().pow(power)
    return unit(features)
