"""BatchNorm over the edges of class graphs, computed on the nodes, with its gradient in closed form.

An edge's input is the sum over its two ends, ``x_ij = p_i + p_j``, so mean and variance over all edges, and
the gradients through them, need sums over nodes and neighbours alone. Nothing of the size of the edges is
ever made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wdae.nn.precision import full_precision

# Up to this many classes an adjacency matrix is the quickest way to sum over neighbours.
DENSE_CLASSES = 1024


class Neighbourhood:
    """Sums over neighbours in graphs ``[E, N, J]``: by an adjacency matrix, edge by edge where N is large."""

    def __init__(self, neighbours: Tensor, dtype: torch.dtype) -> None:
        E, N, J = neighbours.shape
        device = neighbours.device
        self.neighbours = neighbours
        self.adjacency = None
        if N <= DENSE_CLASSES:
            self.adjacency = torch.zeros(E, N, N, dtype=dtype, device=device).scatter_(2, neighbours, 1.0)
            self.degree = self.adjacency.sum(1)  # how often each class is a neighbour [E, N]
        else:
            ones = torch.ones(E, N * J, dtype=dtype, device=device)
            self.degree = torch.zeros(E, N, dtype=dtype, device=device)
            self.degree.scatter_add_(1, neighbours.reshape(E, -1), ones)

    def of(self, p: Tensor) -> Tensor:
        """``Σ_j p_j`` over the neighbours j of each class: ``[E, N, H]``."""
        if self.adjacency is not None:
            return self.adjacency @ p
        total = torch.zeros_like(p)
        for j in range(self.neighbours.shape[-1]):
            total += p.gather(1, self._index(j, p))
        return total

    def into(self, p: Tensor) -> Tensor:
        """``Σ_i p_i`` over the classes i that each class is a neighbour of: ``[E, N, H]``."""
        if self.adjacency is not None:
            return self.adjacency.transpose(1, 2) @ p
        total = torch.zeros_like(p)
        for j in range(self.neighbours.shape[-1]):
            total.scatter_add_(1, self._index(j, p), p)
        return total

    def _index(self, j: int, p: Tensor) -> Tensor:
        return self.neighbours[:, :, j : j + 1].expand(-1, -1, p.shape[-1])


class _EdgeNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, gain: Tensor, shift: Tensor, neighbours: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        with full_precision(projected):
            p = projected.to(gain.dtype)
            near = Neighbourhood(neighbours, p.dtype)
            E, N, J = neighbours.shape
            H = p.shape[-1]
            edges = E * N * J
            ends = (J + near.degree).view(-1)  # edges that end in each node [E·N]
            mean = ends @ p.view(-1, H) / edges
            c = p - mean / 2  # an edge is c_i + c_j, of mean zero
            squares = ends @ c.square().view(-1, H)
            variance = (squares + 2 * (c * near.of(c)).sum((0, 1))) / edges
            scale = torch.rsqrt(variance + eps)
            nodes = torch.addcmul(shift / 2, c, gain * scale)
        ctx.save_for_backward(c, gain, scale, neighbours)
        ctx.mark_non_differentiable(mean, variance)
        return nodes.to(projected.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        c, gain, scale, neighbours = ctx.saved_tensors
        with full_precision(c):
            g = grads[0].to(c.dtype)
            near = Neighbourhood(neighbours, c.dtype)
            E, N, J = neighbours.shape
            edges = E * N * J
            ends = (J + near.degree).unsqueeze(-1)  # [E, N, 1]
            g_gain = (g * c).sum((0, 1)) * scale  # Σ over edges of gradient · normalised input
            g_shift = g.sum((0, 1)) / 2
            around = (near.of(c) + near.into(c)).addcmul_(ends, c)  # Σ of c over the edges at each node
            g_input = (g - ends * (g_shift / edges)).addcmul_(around, -(g_gain * scale / edges))
            g_input.mul_(gain * scale)
        return g_input.to(grads[0].dtype), g_gain, g_shift, None, None


def edge_norm(
    projected: Tensor, gain: Tensor, shift: Tensor, neighbours: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-node ``y`` with ``y_i + y_j = BatchNorm(p_i + p_j)`` by the statistics of this batch's edges.

    Shapes:
        projected ``[E, N, H]``, gain and shift ``[H]``, neighbours ``[E, N, J]`` → y ``[E, N, H]``, and the
        edges' mean and (biased) variance ``[H]``, which carry no gradient.
    """
    y, mean, variance = _EdgeNorm.apply(projected, gain, shift, neighbours, eps)
    return y, mean, variance
