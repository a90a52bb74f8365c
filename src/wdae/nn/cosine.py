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


def weights_of_linear(weight: Tensor, bias: Tensor, mean: Tensor, ridge: float = 3.0) -> Tensor:
    """Unit weights ``[N, D]`` whose cosines rank classes as ``z @ weight.T + bias`` does, nearly.

    A cosine classifier has neither bias nor weights of different lengths. All features have about the same
    component along their ``mean`` ``[D]``, so the bias becomes a component of the weights along it. A vector
    added to all weights adds the same to all scores of an item; the one is added that makes the weights
    nearly equally long: minus the centre of the sphere that they nearly lie on.

    Args:
        ridge: the larger, the shorter that vector, and the less equal the lengths. Weights that are mostly
            that vector would leave added classes, which have none of it, little to be compared with.

    >>> weight, bias = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.zeros(2)
    >>> cosines = weights_of_linear(weight, bias, torch.ones(3), ridge=1e-6)
    >>> z = torch.tensor([[1.0, 0.51, 0.2], [1.0, 0.49, 0.2]])  # 2 · 0.51 is more than 1, 2 · 0.49 is less
    >>> (z @ cosines.T).argmax(1).tolist(), (z @ unit(weight).T).argmax(1).tolist()
    ([1, 0], [0, 0])
    """
    mean, bias = mean.double(), bias.double()
    rows = weight.double() + torch.outer(bias - bias.mean(), mean / mean.square().sum())
    apart, squares = rows - rows.mean(0), rows.square().sum(1)
    gram = apart @ apart.T + ridge * torch.eye(len(rows), dtype=rows.dtype)
    shift = apart.T @ torch.linalg.solve(gram, (squares.mean() - squares) / 2)
    return unit(rows + shift).float()


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
