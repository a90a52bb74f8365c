"""The cosine classifier of the recognition model: ``score_i = γ · cos(z, w_i)``."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unit(x: Tensor) -> Tensor:
    """Scale the last dimension to length one (a zero vector stays zero).

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return F.normalize(x, dim=-1)


def vector_length(x: Tensor) -> Tensor:
    """Length of the last dimension, at least 1e-12: ``[..., D]`` → ``[...]``."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32 if half else None)
    return length.clamp(min=1e-12)


def cosine_scores(features: Tensor, weights: Tensor, scale: Tensor | float) -> Tensor:
    """Scaled cosine similarity of every feature vector with every class weight.

    Shapes:
        features ``[..., Q, D]``, weights ``[..., N, D]`` → scores ``[..., Q, N]``. Leading dimensions
        broadcast, so one weight matrix may serve a batch of episodes.

    >>> cosine_scores(torch.tensor([[3.0, 4.0]]), torch.eye(2), scale=10.0).round(decimals=4).tolist()
    [[6.0, 8.0]]
    """
    return scale * (unit(features) @ unit(weights).transpose(-1, -2))


class CosineClassifier(nn.Module):
    """Classification weights ``w_i`` without bias, and a learned scale ``γ``.

    Args:
        n_classes: number of classes.
        dim: feature size D.
        scale: where γ starts (10 in the paper).
        generator: source of the initial weights, drawn from N(0, 2/D).

    >>> classifier = CosineClassifier(n_classes=5, dim=8)
    >>> classifier(torch.ones(2, 8)).shape, classifier.scale.item()
    (torch.Size([2, 5]), 10.0)
    """

    def __init__(
        self, n_classes: int, dim: int, scale: float = 10.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_classes, dim, generator=generator) * math.sqrt(2.0 / dim))
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor) -> Tensor:
        """Scores ``[..., Q, N]`` of features ``[..., Q, D]``."""
        return cosine_scores(features, self.weight, self.scale)
