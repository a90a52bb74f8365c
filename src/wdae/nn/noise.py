"""The noise of denoising: ``w̃ = unit(w + σ n)``, ``n ~ N(0, 1)``."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.nn.cosine import vector_length
from wdae.runtime.cores import in_pieces, piece_by_piece
from wdae.runtime.randomness import derive_seed

_BLOCK = 1 << 16  # numbers drawn from one seed on a CPU; part of what a seed means


@torch.no_grad()
def add_noise(weights: Tensor, deviation: float, generator: torch.Generator | None) -> Tensor:
    """Rows ``[..., D]`` with noise added, normalised again as in the authors' code.

    On a CPU blocks of rows are drawn one by one, each from a generator seeded by the one given.
    """
    if not in_pieces(weights):
        noise = torch.randn(weights.shape, device=weights.device, generator=generator)
        return _unit(noise.mul_(deviation).add_(weights))
    rows = weights.reshape(-1, weights.shape[-1])
    out = torch.empty_like(rows)
    size = max(1, _BLOCK // rows.shape[1])
    seed = int(torch.randint(1 << 62, (), generator=generator))

    def draw(start: int) -> None:
        own = torch.Generator().manual_seed(derive_seed(seed, start))
        block = out[start : start + size]
        _unit(block.normal_(generator=own).mul_(deviation).add_(rows[start : start + size]))

    piece_by_piece(draw, range(0, len(rows), size))
    return out.view_as(weights)


def _unit(x: Tensor) -> Tensor:
    return x.div_(vector_length(x).unsqueeze(-1))
