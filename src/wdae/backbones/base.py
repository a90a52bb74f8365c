"""The interface of every backbone: a chain of stages from pictures to one feature vector each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wdae.backbones.preprocessing import Preprocessing


class Backbone(nn.Module):
    """A feature extractor ``z = F(x)``.

    The stages are separate, so that manifold mixup can mix between them and each is compiled by itself.

    Args:
        stages: modules applied one after the other; the last gives a feature map or a feature vector.
        feature_dim: size ``D`` of the feature vector.
        image_size: side of the square pictures the backbone is meant for.
        pool: ``"mean"`` averages the last feature map over its positions, ``"flatten"`` keeps them all.
        preprocessing: how it wants its pictures; the central square and ImageNet's colours by default.

    Shapes: ``[B, 3, S, S]`` float pictures to ``[B, D]``.

    >>> backbone = Backbone([nn.Conv2d(3, 16, 3)], feature_dim=16, image_size=32)
    >>> backbone(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        feature_dim: int,
        image_size: int,
        pool: str = "mean",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.feature_dim = feature_dim
        self.image_size = image_size
        self.pool = pool
        self.preprocessing = preprocessing or Preprocessing(image_size=image_size)

    def forward(self, images: Tensor) -> Tensor:
        """Features of a batch of normalised pictures."""
        for stage in self.stages:
            images = stage(images)
        return self.pooled(images)

    def pooled(self, hidden: Tensor) -> Tensor:
        """The feature vector of what the last stage gave."""
        if hidden.dim() == 2:
            return hidden
        if self.pool == "flatten":
            return hidden.flatten(1)
        # Half-precision maps are averaged, and the features kept, in float32.
        wide = torch.float32 if hidden.dtype in (torch.bfloat16, torch.float16) else hidden.dtype
        return hidden.mean(dim=(2, 3), dtype=wide)


def initialise(module: nn.Module) -> None:
    """He-normal convolutions (fan-out), BatchNorm at identity."""
    if any(one.is_meta for one in module.parameters()):  # nothing to fill, and torch takes seconds over it
        return
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


def forward_flops(backbone: Backbone, size: int | None = None) -> int:
    """Floating-point operations of one picture's forward pass (a multiply and an add are two).

    Counted on the CPU with one blank picture. A training step costs about three times as much.

    >>> forward_flops(Backbone([nn.Conv2d(3, 16, 1)], feature_dim=16, image_size=8))
    6144
    """
    side = size or backbone.image_size
    shadow = deepcopy(backbone).cpu().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        shadow(torch.zeros(1, 3, side, side))
    return int(counter.get_total_flops())
