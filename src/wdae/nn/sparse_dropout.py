"""Message passing that computes only the components that survive dropout.

At the paper's dropout of 0.95, nineteen of twenty message components are zero. The positions of the survivors
are drawn first, as independent Bernoulli trials, and only those are computed. Groups of episodes that fit the
cache of a core are done one after the other.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from wdae.runtime.cores import piece_by_piece
from wdae.runtime.randomness import derive_seed

_GROUP = 1 << 20  # components of a group of episodes; part of what a seed means


def sample_survivors(n: int, p: float, generator: torch.Generator | None) -> Tensor:
    """Positions in ``0..n-1``, ascending, each kept independently with probability ``1 - p``.

    The gaps between successes are geometric, so the positions are a cumulative sum of geometric draws.
    """
    keep = 1.0 - p
    count = int(n * keep + 5 * math.sqrt(n * keep * p)) + 16  # too few once in millions; then draw more
    runs: list[Tensor] = []
    last = -1.0
    while last < n - 1:
        # Uniforms of 24 bits, as in torch's own dropout, off zero; sums in float64, exact far beyond n.
        u = torch.empty(count).uniform_(generator=generator).add_(2.0**-25)
        gaps = u.log_().mul_(1.0 / math.log(p)).floor_().add_(1.0)
        run = gaps.cumsum(0, dtype=torch.float64).add_(last)
        last = float(run[-1])
        runs.append(run)
    positions = runs[0] if len(runs) == 1 else torch.cat(runs)
    return positions[: int(torch.searchsorted(positions, float(n)))].long()


def groups(n_episodes: int, components: int) -> list[slice]:
    """Slices of episodes, each of so many message components that they fit a cache."""
    size = max(1, _GROUP // components)
    return [slice(start, min(start + size, n_episodes)) for start in range(0, n_episodes, size)]


def sample_group_survivors(
    n_episodes: int, components: int, p: float, generator: torch.Generator | None
) -> list[Tensor]:
    """:func:`sample_survivors` for each group of episodes, seeded by the generator."""
    seed = int(torch.randint(1 << 62, (), generator=generator))

    def draw(numbered: tuple[int, slice]) -> Tensor:
        number, group = numbered
        own = torch.Generator().manual_seed(derive_seed(seed, number))
        return sample_survivors((group.stop - group.start) * components, p, own)

    return piece_by_piece(draw, list(enumerate(groups(n_episodes, components))))


class _SparseMessages(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        nodes: Tensor,
        strengths: Tensor,
        neighbours: Tensor,
        kept: list[Tensor],
        p: float,
        slope: float,
    ) -> Tensor:
        E, N, J = neighbours.shape
        H = nodes.shape[-1]
        out = torch.empty_like(nodes)
        parts = list(zip(groups(E, N * J * H), kept, strict=True))

        def forth(part: tuple[slice, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            group, position = part
            own = nodes[group].to(torch.promote_types(nodes.dtype, torch.float32)).view(-1)
            R = own.numel() // H
            # By slot j, then node: edge j·R + i goes from node i to another so many components further on.
            row = torch.arange(R).view(-1, N)
            near = neighbours[group].permute(2, 0, 1)  # [J, e, N]
            ahead = (near - row % N).reshape(-1) * H
            strength = strengths[group].permute(2, 0, 1).reshape(-1).to(own.dtype) / (1.0 - p)
            # Integers are slow to divide; with a half added, the quotient of float64 is exact.
            edge = position.double().add_(0.5).mul_(1.0 / H).long()
            receiver = position.clone()
            slots = torch.searchsorted(position, torch.arange(0, (J + 1) * R * H, R * H))
            for j, (begin, end) in enumerate(itertools.pairwise(slots.tolist())):
                receiver[begin:end] -= j * R * H
            sender = ahead.index_select(0, edge).add_(receiver)
            x = own.index_select(0, receiver).add_(own.index_select(0, sender))
            # the strength where x is positive, else its slope-th part
            factor = torch.ops.aten.leaky_relu_backward(strength.index_select(0, edge), x, slope, False)
            out[group] = torch.zeros_like(own).scatter_add_(0, receiver, x.mul_(factor)).view(-1, N, H)
            return receiver, sender, factor

        ctx.saved = piece_by_piece(forth, parts)
        ctx.groups = [group for group, _ in parts]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out = torch.empty_like(grads[0])

        def back(part: tuple[slice, tuple[Tensor, Tensor, Tensor]]) -> None:
            group, (receiver, sender, factor) = part
            flat = grads[0][group].to(factor.dtype).reshape(-1)
            share = flat.index_select(0, receiver).mul_(factor)
            total = torch.zeros_like(flat).scatter_add_(0, receiver, share).scatter_add_(0, sender, share)
            out[group] = total.view_as(out[group])

        piece_by_piece(back, list(zip(ctx.groups, ctx.saved, strict=True)))
        return out, None, None, None, None, None


def sparse_messages(
    nodes: Tensor, strengths: Tensor, neighbours: Tensor, kept: list[Tensor], p: float, slope: float
) -> Tensor:
    """``m_i = Σ_j a_ij Dropout(LeakyReLU(y_i + y_j))`` (eq. 9) for given survivors of dropout.

    Shapes:
        nodes ``[E, N, H]``, strengths and neighbours ``[E, N, J]``, kept: for each group, positions in its
        flattened ``[J, episodes, N, H]`` → ``[E, N, H]``.
    """
    result: Tensor = _SparseMessages.apply(nodes, strengths, neighbours, kept, p, slope)
    return result
