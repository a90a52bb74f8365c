"""BatchNorm over the edges of class graphs, computed on the nodes, with its gradient in closed form.

An edge's input is a sum over its two ends, ``x_ij = p_i + p_j``. With ``around_i``, the sum of x over the
edges at node i, the sum of all squares is ``Σ_ij (p_i + p_j)² = Σ_i p_i · around_i``. So mean, variance and
gradients need sums over nodes alone, and no tensor has the size of the edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wdae.runtime.device import full_precision

# Up to this many classes a matrix is the quickest way to sum over neighbours.
DENSE_CLASSES = 1024


class EdgeSums:
    """Sums over the edges at each node of graphs ``[E, N, J]``; an edge i → j is one at i and one at j."""

    def __init__(self, neighbours: Tensor, dtype: torch.dtype) -> None:
        E, N, J = neighbours.shape
        self.neighbours = neighbours
        self.adjacency = None
        if N <= DENSE_CLASSES:
            zeros = torch.zeros(E, N, N, dtype=dtype, device=neighbours.device)
            self.adjacency = zeros.scatter_(2, neighbours, 1.0)
            self.ends = self.adjacency.sum(1) + J  # edges at each node [E, N]
        else:
            ones = torch.ones(E, N * J, dtype=dtype, device=neighbours.device)
            self.ends = torch.full((E, N), float(J), dtype=dtype, device=neighbours.device)
            self.ends.scatter_add_(1, neighbours.reshape(E, -1), ones)

    def around(self, p: Tensor) -> Tensor:
        """The sum of ``p_i + p_j`` over the edges at each node: ``[E, N, H]`` → ``[E, N, H]``."""
        if self.adjacency is not None:
            total = (self.adjacency + self.adjacency.transpose(1, 2)) @ p
            return total.addcmul_(self.ends.unsqueeze(-1), p)
        total = self.ends.unsqueeze(-1) * p
        for j in range(self.neighbours.shape[-1]):
            index = self.neighbours[:, :, j : j + 1].expand(-1, -1, p.shape[-1])
            total += p.gather(1, index)
            total.scatter_add_(1, index, p)
        return total


class _EdgeNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, gain: Tensor, shift: Tensor, neighbours: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        with full_precision(projected):
            p = projected.to(gain.dtype)
            edges = neighbours.numel()
            sums = EdgeSums(neighbours, p.dtype)
            mean = sums.ends.view(-1) @ p.flatten(0, 1) / edges
            c = p - mean / 2  # an edge is c_i + c_j, of mean zero
            around = sums.around(c)
            variance = (c * around).sum((0, 1)) / edges
            scale = torch.rsqrt(variance + eps)
            nodes = torch.addcmul(shift / 2, c, gain * scale)
        ctx.save_for_backward(c, around, sums.ends, gain, scale)
        ctx.edges = edges
        ctx.mark_non_differentiable(mean, variance)
        return nodes.to(projected.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        c, around, ends, gain, scale = ctx.saved_tensors
        with full_precision(c):
            g = grads[0].to(c.dtype)
            g_gain = (g * c).sum((0, 1)) * scale  # Σ over edges of gradient · normalised input
            g_shift = g.sum((0, 1)) / 2
            g_input = torch.addcmul(g, ends.unsqueeze(-1), g_shift / -ctx.edges)
            g_input = g_input.addcmul_(around, g_gain * scale / -ctx.edges).mul_(gain * scale)
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
