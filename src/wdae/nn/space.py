"""The space that features and class weights are compared in (wDAE-GNN+ alone)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wdae.nn.cosine import unit

_BLOCK = 8192  # rows whose products are summed at once


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """``z' = unit((unit(sign(z) |z|^p) − c) A)``: a power transform, centring, then whitening.

    It damps a few large components, the mean direction, which all classes share, and the directions in which
    images of one class differ (:func:`whitening`; with a shrinkage of 1 there is no A). Base weights are
    learned anew in this space.

    Shapes: centre ``[D]``; weights ``[N, D]``, unit rows; whiten (A) ``[D, D]``.
    """

    power: float
    centre: Tensor
    weights: Tensor
    scale: float
    whiten: Tensor | None = None
    shrink: float = 1.0

    def features(self, features: Tensor) -> Tensor:
        """Features ``[..., D]`` brought into the space, unit rows."""
        rows = powered(features, self.power) - self.centre.to(features.device)
        return unit(rows if self.whiten is None else rows @ self.whiten.to(rows))

    def to(self, device: torch.device | str) -> FeatureSpace:
        """The same on another device."""
        whiten = None if self.whiten is None else self.whiten.to(device)
        return replace(self, centre=self.centre.to(device), weights=self.weights.to(device), whiten=whiten)


def powered(features: Tensor, power: float) -> Tensor:
    """``unit(sign(z) |z|^p)`` of features ``[..., D]``.

    >>> powered(torch.tensor([[4.0, -9.0]]), 0.5).mul(13**0.5).tolist()
    [[2.0, -3.0]]
    """
    if power != 1.0:
        features = features.sign() * features.abs().pow(power)
    return unit(features)


def whitening(features: Tensor, labels: Tensor, shrinks: Sequence[float]) -> dict[float, Tensor]:
    """``((1 − s) Σ + s tr(Σ)/D I)^(-1/2)`` for each s, where Σ is the covariance within classes.

    After it, nearest class means by distance are linear discriminant analysis with a covariance that all
    classes share, shrunk as in Jerome Friedman, "Regularized Discriminant Analysis", 1989,
    https://doi.org/10.1080/01621459.1989.10478752. Base classes have enough images to estimate it; novel
    classes borrow it.

    Shapes: features ``[M, D]``, labels ``[M]`` → ``[D, D]``, symmetric.
    """
    n, D = int(labels.max()) + 1, features.shape[1]
    sums, products = (torch.zeros(k, D, dtype=torch.float64, device=features.device) for k in (n, D))
    for rows, some in zip(features.split(_BLOCK), labels.split(_BLOCK), strict=True):
        rows = rows.double()
        sums.index_add_(0, some, rows)
        products += rows.T @ rows
    counts = torch.bincount(labels, minlength=n).clamp(min=1).unsqueeze(1)
    values, vectors = torch.linalg.eigh(products - sums.T @ (sums / counts))
    values = values.clamp(min=0)
    values = values / values.mean().clamp(min=1e-12)  # 0 where all images of a class are alike
    found = {}
    for shrink in shrinks:
        root = ((1 - shrink) * values + shrink).rsqrt()
        found[shrink] = ((vectors * root) @ vectors.T).to(features.dtype)
    return found


def means_by_class(vectors: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Means ``[C, R]`` of vectors ``[M, R]``; 0 for a class without any."""
    sums = vectors.new_zeros(n_classes, vectors.shape[1]).index_add_(0, labels, vectors)
    return sums / torch.bincount(labels, minlength=n_classes).clamp(min=1).unsqueeze(1)
