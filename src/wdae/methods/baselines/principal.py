"""Smaller spaces that keep what base classes vary in, for methods that work in one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet


def principal_directions(pool: ClassSet, size: int) -> Tensor:
    """The directions along which features are longest: orthonormal rows ``[size, D]``, the longest first.

    Of all maps to that size this one keeps inner products of the pool's features best, and so nearest means.

    >>> rows = torch.eye(6)[[0, 0, 0, 3, 3, 5]]
    >>> pool = ClassSet(rows, torch.tensor([0, 3]), torch.tensor([3, 3]), ("a", "b"))
    >>> principal_directions(pool, 2).abs().argmax(1)
    tensor([0, 3])
    """
    rows = pool.features.float()
    vectors: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors  # the longest last
    return vectors.flip(1)[:, :size].T.contiguous()


@torch.no_grad()
def start_along_principal(layer: nn.Linear, pool: ClassSet) -> None:
    """Start a linear map to a smaller size along the principal directions; one to a larger size stays."""
    if layer.out_features <= layer.in_features:
        layer.weight.copy_(principal_directions(pool, layer.out_features))
