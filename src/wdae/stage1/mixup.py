"""Mixup and manifold mixup: where, how much and with whom a step mixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wdae.runtime.randomness import derive_seed
from wdae.stage1.config import MixupConfig


@dataclass(frozen=True, eq=False)
class Mix:
    """One step's mixing.

    Args:
        layer: 0 mixes the pictures, n the output of stage n.
        share: of a pair's first member, a 0-d tensor (a Python number would recompile at each step).
        partner: ``[B]``, the row each row is mixed with.
    """

    layer: int
    share: Tensor
    partner: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """``share · rows + (1 - share) · rows[partner]``, in the dtype and memory layout of the rows."""
        mixed = torch.lerp(rows[self.partner], rows, self.share.to(rows.dtype))
        # One layout always: a compiled stage is compiled anew for every layout it meets.
        return mixed.contiguous(memory_format=torch.channels_last) if mixed.dim() == 4 else mixed


def draw_mix(config: MixupConfig, seed: int, step: int, partner: Tensor) -> Mix | None:
    """The mixing of a step, or None where it does not mix.

    Layer and share are drawn on the CPU from the seed and the step alone: every process draws the same.
    """
    rng = np.random.default_rng(derive_seed(seed, "mixup", step))
    if rng.random() >= config.probability:
        return None
    layer = config.layers[int(rng.integers(len(config.layers)))]
    share = float(rng.beta(config.alpha, config.alpha))
    return Mix(layer, torch.full((), share, device=partner.device), partner)
