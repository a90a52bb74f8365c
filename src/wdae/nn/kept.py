"""Message passing that computes only the components dropout keeps.

At the paper's dropout of 0.95, nineteen of twenty message components are thrown away. Here the survivors'
positions are drawn first, exactly as independent coin flips, and only they are computed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def sample_kept(n: int, p: float, generator: torch.Generator | None) -> Tensor:
    """Positions in ``0..n-1``, ascending, each kept independently with probability ``1 - p``.

    The gaps between the successes of coin flips are geometric, so the positions are a running sum of
    geometric draws; more are drawn until they pass n.
    """
    keep = 1.0 - p
    count = int(n * keep + 5 * math.sqrt(n * keep * p)) + 16  # too few once in millions; then draw more
    runs: list[Tensor] = []
    last = -1
    while last < n - 1:
        # float64: a float32 uniform cannot tell apart gaps beyond its 24 bits, nor sums beyond 2^24
        u = torch.empty(count, dtype=torch.float64).uniform_(generator=generator).clamp_(min=1e-300)
        gaps = u.log_().mul_(1.0 / math.log(p)).floor_().add_(1.0)
        gaps[0] += last
        run = gaps.cumsum_(0).long()
        last = int(run[-1])
        runs.append(run)
    positions = runs[0] if len(runs) == 1 else torch.cat(runs)
    return positions[: int(torch.searchsorted(positions, n))]


class _KeptMessages(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, strengths: Tensor, rows: Tensor, kept: Tensor, p: float, slope: float
    ) -> Tensor:
        H, J = nodes.shape[1], rows.shape[1]
        edge = kept.div(H, rounding_mode="floor")
        channel = kept - edge * H
        receiver = edge.div(J, rounding_mode="floor") * H + channel
        sender = rows.reshape(-1).index_select(0, edge) * H + channel
        flat = nodes.reshape(-1)
        x = flat.index_select(0, receiver) + flat.index_select(0, sender)
        factor = strengths.reshape(-1).index_select(0, edge).to(x.dtype) / (1.0 - p)
        factor = torch.where(x > 0, factor, factor * slope)
        ctx.save_for_backward(receiver, sender, factor)
        ctx.shape = nodes.shape
        return torch.zeros_like(flat).index_add_(0, receiver, x * factor).view_as(nodes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        receiver, sender, factor = ctx.saved_tensors
        flat = grads[0].reshape(-1)
        share = flat.index_select(0, receiver) * factor
        out = torch.zeros_like(flat).index_add_(0, receiver, share).index_add_(0, sender, share)
        return out.view(ctx.shape), None, None, None, None, None


def kept_messages(
    nodes: Tensor, strengths: Tensor, rows: Tensor, kept: Tensor, p: float, slope: float
) -> Tensor:
    """``m_i = Σ_j a_ij Dropout(LeakyReLU(y_i + y_j))`` with the kept components given.

    Shapes:
        nodes ``[R, H]``, strengths and rows (neighbours) ``[R, J]``, kept: positions in ``[R, J, H]``
        flattened → ``[R, H]``.
    """
    result: Tensor = _KeptMessages.apply(nodes, strengths, rows, kept, p, slope)
    return result
