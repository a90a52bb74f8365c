"""Linear layers with the starts that methods need, small networks, and means over shots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def identity_linear(dim: int, bias: bool = False) -> nn.Linear:
    """A linear map ``[..., D] → [..., D]`` that starts as the identity."""
    layer = nn.Linear(dim, dim, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(dim))
        if bias:
            layer.bias.zero_()
    return layer


def orthogonal_linear(dim: int, size: int, generator: torch.Generator | None = None) -> nn.Linear:
    """A linear map to another size that starts with orthogonal rows (or columns).

    >>> layer = orthogonal_linear(6, 3, torch.Generator().manual_seed(0))
    >>> torch.allclose(layer.weight @ layer.weight.T, 2 * torch.eye(3), atol=1e-5)
    True
    """
    layer = nn.Linear(dim, size, bias=False)
    rows, _ = torch.linalg.qr(torch.randn(max(dim, size), min(dim, size), generator=generator))
    with torch.no_grad():
        layer.weight.copy_((rows.T if size <= dim else rows) * math.sqrt(max(1.0, dim / size)))
    return layer


def mlp(
    sizes: Sequence[int], generator: torch.Generator | None = None, *, zero_last: bool = False
) -> nn.Sequential:
    """Linear layers with ReLU between them; with ``zero_last`` the output starts at zero."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [linear(n_in, n_out, generator), nn.ReLU()]
    layers.pop()
    last = layers[-1]
    if zero_last and isinstance(last, nn.Linear):
        with torch.no_grad():
            last.weight.zero_()
    return nn.Sequential(*layers)


def linear(n_in: int, n_out: int, generator: torch.Generator | None = None) -> nn.Linear:
    """A linear layer with weights from N(0, 2 / n_in) and zero bias."""
    layer = nn.Linear(n_in, n_out)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(n_out, n_in, generator=generator) * math.sqrt(2.0 / n_in))
        layer.bias.zero_()
    return layer


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the shots of a class: ``[..., K, D]``, mask ``[..., K]`` → ``[..., D]``."""
    if mask is None:
        return x.mean(-2)
    kept = mask.unsqueeze(-1).to(x.dtype)
    return (x * kept).sum(-2) / kept.sum(-2).clamp(min=1)


@torch.no_grad()
def principal_init(layer: nn.Linear, features: Tensor) -> None:
    """Start a linear map to a smaller size along the principal directions of features ``[M, D]``.

    Of all maps to that size this one best preserves their inner products, and so nearest means. A map to a
    larger size is left as it is.

    >>> layer = nn.Linear(6, 2)
    >>> principal_init(layer, torch.eye(6)[[0, 0, 0, 3, 3, 5]])
    >>> layer.weight.abs().argmax(1)
    tensor([0, 3])
    """
    if layer.out_features <= layer.in_features:
        rows = features.float()
        vectors: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors  # the longest last
        layer.weight.copy_(vectors.flip(1)[:, : layer.out_features].T)
