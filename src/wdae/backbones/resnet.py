"""ResNet-10 (ImageNet-FS) and ResNet-12 (the few-shot literature's).

Residual networks: He et al., CVPR 2016, https://arxiv.org/abs/1512.03385. ResNet-12: Oreshkin et al. (TADAM),
NeurIPS 2018, https://arxiv.org/abs/1805.10123; its wider form: Lee et al. (MetaOptNet), CVPR 2019,
https://arxiv.org/abs/1904.03758.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.registry import register
from wdae.errors import RecipeError


def _conv_bn(in_width: int, out_width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(in_width, out_width, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out_width),
    ]


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut: ``relu(conv(relu(conv(x))) + shortcut(x))``.

    Args:
        final_relu: the last block of ResNet-10 leaves its ReLU out, so that features take both signs.

    Shapes: ``[B, in_width, S, S]`` to ``[B, out_width, S / stride, S / stride]``.
    """

    def __init__(self, in_width: int, out_width: int, stride: int, final_relu: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv_bn(in_width, out_width, 3, stride),
            nn.ReLU(inplace=True),
            *_conv_bn(out_width, out_width, 3),
        )
        same = in_width == out_width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_bn(in_width, out_width, 1, stride))
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return F.relu(out) if self.final_relu else out


@register("resnet10")
def resnet10(
    image_size: int = 224, stem: str = "imagenet", widths: Sequence[int] = (64, 128, 256, 512)
) -> Backbone:
    """ResNet-10: one basic block per width, 512 features, no ReLU after the last block.

    Args:
        stem: ``"imagenet"`` is 7 × 7 stride 2 and max-pooling, for 224 px; ``"small"`` one 3 × 3
            convolution, for pictures of about 80 px.
    """
    if stem == "imagenet":
        first = nn.Sequential(
            *_conv_bn(3, widths[0], 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
    elif stem == "small":
        first = nn.Sequential(*_conv_bn(3, widths[0], 3), nn.ReLU(inplace=True))
    else:
        raise RecipeError(f"resnet10: stem is {stem!r}; accepted: 'imagenet', 'small'")
    inputs = (widths[0], *widths[:-1])
    blocks = [
        BasicBlock(inp, out, 1 if i == 0 else 2, final_relu=i < len(widths) - 1)
        for i, (inp, out) in enumerate(zip(inputs, widths, strict=True))
    ]
    backbone = Backbone([first, *blocks], widths[-1], image_size)
    initialise(backbone)
    return backbone


class TripleBlock(nn.Module):
    """ResNet-12's block: three 3 × 3 convolutions, a 1 × 1 shortcut, LeakyReLU 0.1, 2 × 2 max-pooling.

    Shapes: ``[B, in_width, S, S]`` to ``[B, out_width, S / 2, S / 2]``.
    """

    def __init__(self, in_width: int, out_width: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv_bn(in_width, out_width, 3),
            nn.LeakyReLU(0.1, inplace=True),
            *_conv_bn(out_width, out_width, 3),
            nn.LeakyReLU(0.1, inplace=True),
            *_conv_bn(out_width, out_width, 3),
        )
        self.shortcut = nn.Sequential(*_conv_bn(in_width, out_width, 1))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """One residual step, then half the side."""
        out: Tensor = F.leaky_relu(self.body(x) + self.shortcut(x), 0.1)
        out = F.max_pool2d(out, 2)
        return F.dropout(out, self.dropout, self.training) if self.dropout else out


@register("resnet12")
def resnet12(
    image_size: int = 84, dropout: float = 0.0, widths: Sequence[int] = (64, 160, 320, 640)
) -> Backbone:
    """ResNet-12, by default of widths 64-160-320-640: 640 features, 12.4 M parameters."""
    inputs = (3, *widths[:-1])
    blocks = [TripleBlock(inp, out, dropout) for inp, out in zip(inputs, widths, strict=True)]
    backbone = Backbone(blocks, widths[-1], image_size)
    initialise(backbone)
    return backbone


@register("resnet12-512")
def resnet12_512(image_size: int = 84, dropout: float = 0.0) -> Backbone:
    """ResNet-12 of widths 64-128-256-512 (TADAM's): 512 features, 8.0 M parameters."""
    return resnet12(image_size, dropout, (64, 128, 256, 512))
