"""ResNet-12 with second-order features beside the mean: Brownian distance covariances of a few channels.

DeepBDC: Xie et al., CVPR 2022, https://arxiv.org/abs/2204.04567. There the matrix stands alone; here it is
small and stands beside the mean, so that features stay few enough for a bank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.registry import register
from wdae.backbones.resnet import TripleBlock

_LENGTH = 10.0  # of each of the two parts: neither outweighs the other
_NEAR = 1e-3  # keeps the root's slope finite where two channels are alike


def distance_covariances(maps: Tensor, scale: Tensor) -> Tensor:
    """The Brownian distance covariance matrix of the channels of a feature map, its upper triangle.

    Euclidean distances between every two channels, each channel a vector over positions, centred by rows and
    columns: how channels depend on each other, not only linearly.

    Args:
        scale: of the squared distances, 0-d or ``[1]``, learned.

    Shapes: ``[B, C, S, S]`` to ``[B, C (C + 1) / 2]``.
    """
    rows = maps.flatten(2).float()
    rows = rows / rows.shape[-1] ** 0.5
    gram = rows @ rows.transpose(1, 2)
    square = gram.diagonal(dim1=1, dim2=2)
    apart = (square[:, :, None] + square[:, None] - 2 * gram).clamp(min=0)
    distance = (apart * scale + _NEAR).sqrt()
    mean = distance.mean(2, keepdim=True)
    centred = distance - mean - mean.transpose(1, 2) + mean.mean(1, keepdim=True)
    i, j = torch.triu_indices(maps.shape[1], maps.shape[1], device=maps.device)
    upper: Tensor = centred[:, i, j]
    return upper


class SecondOrderBlock(TripleBlock):
    """The last block of ResNet-12, ending in a vector: the mean of its map, and covariances of few channels.

    The covariances are of the map before max-pooling, which has four times the positions.

    Shapes: ``[B, in_width, S, S]`` to ``[B, out_width + channels (channels + 1) / 2]``.
    """

    def __init__(self, in_width: int, out_width: int, channels: int) -> None:
        super().__init__(in_width, out_width, dropout=0.0)
        self.reduce = nn.Sequential(
            nn.Conv2d(out_width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """One residual step, then both kinds of features, each of the same length."""
        out: Tensor = F.leaky_relu(self.body(x) + self.shortcut(x), 0.1)
        mean = F.max_pool2d(out, 2).mean(dim=(2, 3), dtype=torch.float32)
        few = self.reduce(out)
        with torch.autocast(x.device.type, enabled=False):
            second = distance_covariances(few, self.log_scale.exp())
            return _LENGTH * torch.cat([F.normalize(mean, dim=1), F.normalize(second, dim=1)], dim=1)


@register("resnet12-bdc")
def resnet12_bdc(
    image_size: int = 84,
    dropout: float = 0.0,
    widths: Sequence[int] = (64, 160, 320, 608),
    channels: int = 48,
) -> Backbone:
    """ResNet-12 of widths 64-160-320-608, with second-order features: 1,784 features, 11.6 M parameters.

    Args:
        dropout: after all blocks but the last.
        channels: whose covariances stand beside the mean.
    """
    first = [TripleBlock(inp, out, dropout) for inp, out in zip((3, *widths[:-2]), widths[:-1], strict=True)]
    last = SecondOrderBlock(widths[-2], widths[-1], channels)
    backbone = Backbone([*first, last], widths[-1] + channels * (channels + 1) // 2, image_size)
    initialise(backbone)
    return backbone
