"""Support sets grown by made-up examples; what methods with hallucination ("w/ H") share."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.methods.base import Support


def per_shot(shots: Tensor, wanted: int, least: int = 0) -> Tensor:
    """How many examples to make from each shot so that a class has about ``wanted`` in all.

    >>> per_shot(torch.tensor([1, 5, 50]), 20).tolist()
    [19, 3, 0]
    """
    return (torch.round(wanted / shots.clamp(min=1)).long() - 1).clamp(min=least)


def most_per_shot(support: Support, wanted: int, least: int = 0) -> int:
    """The largest number of examples to make from one shot of a support set."""
    fewest = 1 if support.mask is not None else support.features.shape[2]
    return int(per_shot(torch.tensor(fewest), wanted, least))


def grow(support: Support, made: Tensor, wanted: int, least: int = 0) -> Support:
    """A support set with made-up examples behind each class's own, as many as its shots leave open.

    Each shot has T examples made from it, in the same T ways, so that neither the order of shots nor that of
    classes matters.

    Shapes: made ``[E, n, K, T, D]``, T from :func:`most_per_shot` → support of ``K (1 + T)`` shots a class.
    """
    E, n, K, T, D = made.shape
    features = torch.cat([support.features, made.reshape(E, n, K * T, D).to(support.features.dtype)], dim=2)
    if support.mask is None:
        return Support(features)
    own = per_shot(support.shots, wanted, least)  # [E, n]
    kept = torch.arange(T, device=made.device) < own[..., None, None]  # [E, n, 1, T]
    kept = (support.mask.unsqueeze(-1) & kept).reshape(E, n, K * T)
    return Support(features, torch.cat([support.mask, kept], dim=-1))
