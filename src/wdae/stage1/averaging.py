"""Averages of the weights over training: exponential (EMA) or plain (SWA).

EMA: Polyak and Juditsky, 1992, https://doi.org/10.1137/0330046. SWA, with fresh BatchNorm statistics:
Izmailov et al., UAI 2018, https://arxiv.org/abs/1803.05407.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wdae.stage1.config import AveragingConfig
from wdae.stage1.recognition_model import RecognitionModel


class Average:
    """A copy of a model that holds the average of its weights.

    Floating-point buffers (BatchNorm's statistics) are averaged like weights; :func:`refresh_statistics`
    computes them again before each validation.
    """

    def __init__(self, model: RecognitionModel, config: AveragingConfig, total_steps: int) -> None:
        self.module = deepcopy(model).requires_grad_(False).eval()
        self.config = config
        self.first = int(config.start * total_steps)
        self.updates = 0
        self._ours, self._theirs = _floats(self.module), _floats(model)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the model's weights after ``step`` (counted from 0) to the average."""
        if step < self.first or (step + 1) % self.config.every:
            return
        self.updates += 1
        weight = 1.0 - self.config.decay if self.config.kind == "ema" else 1.0 / self.updates
        if self.updates == 1:
            torch._foreach_copy_(self._ours, self._theirs)
        else:
            torch._foreach_lerp_(self._ours, self._theirs, weight)

    @property
    def begun(self) -> bool:
        """Whether anything has been averaged yet; before that the model itself is validated."""
        return self.updates > 0


def _floats(module: nn.Module) -> list[Tensor]:
    return [value.detach() for value in module.state_dict().values() if value.is_floating_point()]


@torch.no_grad()
def refresh_statistics(
    model: RecognitionModel, batches: Iterable[Tensor], precision: str = "float32"
) -> None:
    """Set BatchNorm's running statistics to their plain mean over the given batches of pictures."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    was_training = model.training
    model.eval()  # Dropout stays off, as in evaluation.
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # A cumulative mean.
    for images in batches:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
            model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)
