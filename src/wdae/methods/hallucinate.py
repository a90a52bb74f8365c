"""Support sets grown by made-up examples; what methods with hallucination ("w/ H") share."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.methods.base import Support


def grow(support: Support, made: Tensor) -> Support:
    """A support set with made-up examples behind each class's own.

    Each shot has T examples made from it, in the same T ways, so that neither the order of shots nor that of
    classes matters.

    Shapes: made ``[E, n, K, T, D]`` → support of ``K (1 + T)`` shots a class.
    """
    E, n, K, T, D = made.shape
    features = torch.cat([support.features, made.reshape(E, n, K * T, D).to(support.features.dtype)], dim=2)
    if support.mask is None:
        return Support(features)
    return Support(features, torch.cat([support.mask, support.mask.repeat_interleave(T, dim=-1)], dim=-1))


def per_shot(wanted: int, n_shot: int) -> int:
    """How many examples to make from each shot so that a class has about ``wanted`` in all.

    >>> per_shot(20, 1), per_shot(20, 5), per_shot(20, 50)
    (19, 3, 0)
    """
    return max(0, round(wanted / n_shot) - 1)
