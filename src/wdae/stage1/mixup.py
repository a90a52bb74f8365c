"""Mixup of pictures and manifold mixup of feature maps.

Mixup: Zhang et al., ICLR 2018, https://arxiv.org/abs/1710.09412. Manifold mixup: Verma et al., ICML 2019,
https://arxiv.org/abs/1806.05236.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.runtime.randomness import derive_seed
from wdae.stage1.config import MixupConfig


@dataclass(frozen=True, eq=False)
class Mix:
    """How one step mixes its rows.

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
        # One layout always: a compiled stage is compiled again for every new layout.
        return mixed.contiguous(memory_format=torch.channels_last) if mixed.dim() == 4 else mixed


def draw_mix(config: MixupConfig, seed: int, step: int, partner: Tensor) -> Mix | None:
    """The mix of a step, or None where it does not mix.

    Layer and share are drawn on the CPU from the seed and the step alone: every process draws the same.
    """
    rng = np.random.default_rng(derive_seed(seed, "mixup", step))
    if rng.random() >= config.probability:
        return None
    layer = config.layers[int(rng.integers(len(config.layers)))]
    share = float(rng.beta(config.alpha, config.alpha))
    return Mix(layer, torch.full((), share, device=partner.device), partner)


def mixed_cross_entropy(scores: Tensor, labels: Tensor, mix: Mix | None, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy to a row's own label and, where rows are mixed, to its partner's, weighed by share."""
    own = F.cross_entropy(scores, labels, label_smoothing=smoothing)
    if mix is None:
        return own
    other = F.cross_entropy(scores, labels[mix.partner[: len(scores)]], label_smoothing=smoothing)
    return mix.share * own + (1.0 - mix.share) * other
