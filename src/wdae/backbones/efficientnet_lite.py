"""EfficientNet-Lite: inverted residuals with ReLU6 and no squeeze-and-excitation, quick on a CPU.

Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946; the Lite variants leave out what is slow on small
devices. Convolutions are padded as TensorFlow does, in which the published weights were trained: where a
stride leaves an odd number of pixels to add, the last side gets one more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.preprocessing import Preprocessing
from wdae.backbones.registry import register

FEATURES = 1280
_STEM = 32
_MARGIN = 32  # pixels of a picture's shorter side that are not seen
_EPSILON = 1e-3  # of BatchNorm, as in the published networks


class _Group(NamedTuple):
    """Blocks of one width: how many, kernel, stride of the first, growth inside a block, width."""

    blocks: int
    kernel: int
    stride: int
    growth: int
    width: int


_GROUPS = (  # table 1 of the paper
    _Group(1, 3, 1, 1, 16),
    _Group(2, 3, 2, 6, 24),
    _Group(2, 5, 2, 6, 40),
    _Group(3, 3, 2, 6, 80),
    _Group(3, 5, 1, 6, 112),
    _Group(4, 5, 2, 6, 192),
    _Group(1, 3, 1, 6, 320),
)


class SameConv(nn.Conv2d):
    """A convolution without bias whose output has ``ceil(side / stride)`` pixels a side."""

    def __init__(self, in_width: int, out_width: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        around = kernel // 2 if stride == 1 else 0
        super().__init__(in_width, out_width, kernel, stride, around, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_width, S, S]`` to ``[B, out_width, ceil(S / stride), ceil(S / stride)]``."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            spare = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
            before = [pixels // 2 for pixels in spare]
            x = F.pad(x, (before[1], spare[1] - before[1], before[0], spare[0] - before[0]))
        return super().forward(x)


def _unit(
    in_width: int, out_width: int, kernel: int, stride: int = 1, groups: int = 1, *, relu: bool = True
) -> nn.Sequential:
    conv = SameConv(in_width, out_width, kernel, stride, groups)
    last = [nn.ReLU6(inplace=True)] if relu else []
    return nn.Sequential(conv, nn.BatchNorm2d(out_width, eps=_EPSILON), *last)


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; added to the input where the shapes allow it.

    Shapes: ``[B, in_width, S, S]`` to ``[B, out_width, ceil(S / stride), ceil(S / stride)]``.
    """

    def __init__(self, in_width: int, out_width: int, kernel: int, stride: int, growth: int) -> None:
        super().__init__()
        wide = in_width * growth
        self.expand = _unit(in_width, wide, 1) if growth > 1 else nn.Identity()
        self.depthwise = _unit(wide, wide, kernel, stride, groups=wide)
        self.project = _unit(wide, out_width, 1, relu=False)
        self.is_residual = stride == 1 and in_width == out_width

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.is_residual else out


@register("efficientnet-lite0")
def efficientnet_lite0(image_size: int = 224) -> Backbone:
    """EfficientNet-Lite0: 1,280 features, 3.4 M parameters."""
    stages: list[nn.Module] = [_unit(3, _STEM, 3, stride=2)]
    width = _STEM
    for group in _GROUPS:
        for block in range(group.blocks):
            stride = group.stride if block == 0 else 1
            stages.append(InvertedResidual(width, group.width, group.kernel, stride, group.growth))
            width = group.width
    stages.append(_unit(width, FEATURES, 1))
    # As it was trained: the central square less a margin, colours from -1 to 1.
    half = (0.5, 0.5, 0.5)
    rule = Preprocessing(
        image_size=image_size, resize=image_size + _MARGIN, interpolation="bicubic", mean=half, std=half
    )
    backbone = Backbone(stages, FEATURES, image_size, preprocessing=rule)
    initialise(backbone)
    return backbone
