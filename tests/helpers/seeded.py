"""Random numbers of a seed."""

from __future__ import annotations

import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    """A generator with a seed."""
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers of a seed."""
    return torch.randn(shape, generator=generator(seed))
