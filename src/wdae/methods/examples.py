"""Support sets as lists of labelled examples, and support sets with made-up examples added."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.methods.base import Support
from wdae.runtime.device import full_precision


@dataclass(frozen=True)
class SupportExamples:
    """Shapes: features ``[E, M, D]``, targets one-hot ``[E, M, C]``, weight ``[E, M]`` (0 is padding)."""

    features: Tensor
    targets: Tensor
    weight: Tensor

    def read(self, affinity: Tensor) -> Tensor:
        """Log of the mean attention of each class's examples: ``[E, Q, M]`` → ``[E, Q, C]``.

        Attention is a softmax of affinities over the examples that are not padding.
        """
        real = self.weight > 0
        shares = self.targets * real.unsqueeze(-1)
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        with full_precision(affinity):
            attention = torch.softmax(affinity.float().masked_fill(~real.unsqueeze(1), -torch.inf), -1)
            mass = attention @ shares
            return torch.log(mass.clamp(min=torch.finfo(mass.dtype).tiny))


def support_examples(support: Support, base: Tensor | None = None) -> SupportExamples:
    """All shots of an episode in one list, class after class; base classes, if given, come first.

    A base class is one example, its weight or mean ``[N, D]`` or ``[E, N, D]``. It counts as much as the
    shots of a novel class do together, on average.

    >>> support_examples(Support(torch.ones(2, 3, 4, 5)), torch.ones(6, 5)).targets.shape
    torch.Size([2, 18, 9])
    """
    E, n, K, D = support.features.shape
    features = support.features.reshape(E, n * K, D)
    targets = torch.eye(n, device=features.device).repeat_interleave(K, 0).expand(E, -1, -1)
    if support.mask is None:
        weight = features.new_ones(E, n * K)
    else:
        weight = support.mask.reshape(E, n * K).to(features.dtype)
        features = torch.where(support.mask.reshape(E, n * K, 1), features, 0.0)
    if base is None:
        return SupportExamples(features, targets, weight)
    N = base.shape[-2]
    all_targets = torch.zeros(N + n * K, N + n, device=features.device)
    all_targets[:N, :N] = torch.eye(N, device=features.device)
    all_targets[N:, N:] = targets[0]
    return SupportExamples(
        torch.cat([base.expand(E, -1, -1), features], dim=1),
        all_targets.expand(E, -1, -1),
        torch.cat([(weight.sum(-1, keepdim=True) / n).expand(-1, N), weight], dim=1),
    )


@dataclass(frozen=True)
class LinearScorer:
    """Scores ``scale · (W z + b)``. Shapes: weights ``[E, C, D]``, bias ``[E, C]`` or None."""

    weights: Tensor
    bias: Tensor | None = None
    scale: Tensor | float = 1.0

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores ``[E, Q, C]`` of queries ``[E, Q, D]``."""
        scores = queries @ self.weights.transpose(-1, -2)
        return self.scale * (scores if self.bias is None else scores + self.bias.unsqueeze(1))


def per_shot(shots: Tensor, wanted: int, least: int = 0) -> Tensor:
    """How many examples to make up from each shot so that a class has about ``wanted`` in all.

    >>> per_shot(torch.tensor([1, 5, 50]), 20).tolist()
    [19, 3, 0]
    """
    return (torch.round(wanted / shots.clamp(min=1)).long() - 1).clamp(min=least)


def most_per_shot(support: Support, wanted: int, least: int = 0) -> int:
    """The largest number of examples to make up from one shot of a support set."""
    fewest = 1 if support.mask is not None else support.features.shape[2]
    return int(per_shot(torch.tensor(fewest), wanted, least))


def add_hallucinated(support: Support, made: Tensor, wanted: int, least: int = 0) -> Support:
    """A support set with made-up examples behind each class's own, up to ``wanted`` for each class.

    Each shot is transformed in the same T ways, so the order of shots and classes does not matter.

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
