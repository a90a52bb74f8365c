"""Wide residual networks with the layout of the paper's WRN-28-10.

Zagoruyko and Komodakis, BMVC 2016, https://arxiv.org/abs/1605.07146.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.registry import register
from wdae.errors import RecipeError


class WideBlock(nn.Module):
    """``conv2(dropout(relu(bn2(conv1(a))))) + shortcut(x)`` with ``a = relu(bn1(x))``.

    As in the authors' code, a block whose width or stride changes has no ``bn1`` and no activation on its
    input (``a = x``), and its shortcut is a 1 × 1 convolution of ``x``; the others add ``x`` itself.

    Shapes: ``[B, in_width, S, S]`` to ``[B, out_width, S / stride, S / stride]``.
    """

    def __init__(self, in_width: int, out_width: int, stride: int, dropout: float) -> None:
        super().__init__()
        same = in_width == out_width and stride == 1
        self.bn1 = nn.BatchNorm2d(in_width) if same else None
        self.conv1 = nn.Conv2d(in_width, out_width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_width)
        self.conv2 = nn.Conv2d(out_width, out_width, 3, padding=1, bias=False)
        self.shortcut = None if same else nn.Conv2d(in_width, out_width, 1, stride=stride, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        activated = x if self.bn1 is None else F.relu(self.bn1(x))
        hidden = F.relu(self.bn2(self.conv1(activated)))
        if self.dropout:
            hidden = F.dropout(hidden, self.dropout, self.training)
        out: Tensor = self.conv2(hidden) + (x if self.shortcut is None else self.shortcut(x))
        return out


class WideGroup(nn.Module):
    """Blocks of one width, the first of which takes the stride, closed by BatchNorm and ReLU."""

    def __init__(self, in_width: int, out_width: int, n_blocks: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            WideBlock(in_width, out_width, stride, dropout),
            *(WideBlock(out_width, out_width, 1, dropout) for _ in range(n_blocks - 1)),
        )
        self.bn = nn.BatchNorm2d(out_width)

    def forward(self, x: Tensor) -> Tensor:
        """``relu(bn(blocks(x)))``."""
        return F.relu(self.bn(self.blocks(x)))


class Stem(nn.Module):
    """``relu(bn(conv(x)))``: three channels to sixteen at full size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """The first feature map."""
        return F.relu(self.bn(self.conv(x)))


@register("wide-resnet")
def wide_resnet(
    depth: int = 28,
    widen: int = 10,
    strides: Sequence[int] = (2, 2, 2),
    dropout: float = 0.0,
    image_size: int = 80,
) -> Backbone:
    """A stem of 16 and three groups of ``(depth - 4) / 6`` blocks of widths 16, 32, 64 × ``widen``."""
    if depth < 10 or (depth - 4) % 6:
        raise RecipeError(f"wide-resnet: depth is {depth}; accepted: 10, 16, 22, 28, 34, ... (6 n + 4)")
    if len(strides) != 3:
        raise RecipeError(f"wide-resnet: {len(strides)} strides given; there are three groups")
    widths = (16, 16 * widen, 32 * widen, 64 * widen)
    groups = [
        WideGroup(inp, out, (depth - 4) // 6, stride, dropout)
        for inp, out, stride in zip(widths[:-1], widths[1:], strides, strict=True)
    ]
    backbone = Backbone([Stem(16), *groups], widths[-1], image_size)
    initialise(backbone)
    return backbone


@register("wrn-28-10")
def wrn_28_10(dropout: float = 0.0, image_size: int = 80) -> Backbone:
    """WRN-28-10 of the MiniImageNet and tieredImageNet rows: 80 px, 640 features, 36,472,784 parameters."""
    return wide_resnet(28, 10, (2, 2, 2), dropout, image_size)
