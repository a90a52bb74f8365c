"""Linear systems and iterations want full precision, also where matrix products around them are bfloat16."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[None]:
    """A block without autocast on the device of a tensor; give it ``.float()`` tensors."""
    context: AbstractContextManager[None] = torch.autocast(like.device.type, enabled=False)
    return context
