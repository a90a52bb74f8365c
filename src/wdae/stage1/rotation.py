"""Quarter turns of pictures, for rotation self-supervision."""

from __future__ import annotations

import torch
from torch import Tensor


def all_turns(images: Tensor) -> Tensor:
    """Every picture in its four turns, turn after turn: ``[B, C, S, S]`` to ``[4 B, C, S, S]``."""
    turned = torch.cat([torch.rot90(images, turn, (2, 3)) for turn in range(4)])
    return turned.contiguous(memory_format=torch.channels_last)


def upright_and_turned(images: Tensor, turns: Tensor) -> Tensor:
    """Every picture upright, then each by its own number of quarter turns: ``[2 B, C, S, S]``."""
    each = torch.stack([torch.rot90(images, turn, (2, 3)) for turn in range(4)])  # [4, B, C, S, S]
    chosen = each[turns, torch.arange(len(images), device=images.device)]
    return torch.cat([images, chosen]).contiguous(memory_format=torch.channels_last)
