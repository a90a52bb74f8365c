"""Four convolutions: Conv-4-64 and Conv-4-512 of the paper's tables.

Prototypical networks: Snell et al., NeurIPS 2017, https://arxiv.org/abs/1703.05175. LwoF: Gidaris and
Komodakis, CVPR 2018, https://arxiv.org/abs/1804.09458. R2-D2: Bertinetto et al., ICLR 2019,
https://arxiv.org/abs/1805.08136.
"""

from __future__ import annotations

from torch import nn

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.registry import register
from wdae.errors import RecipeError


def _block(in_width: int, out_width: int, *, last: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(in_width, out_width, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_width),
    ]
    if not last:
        layers.append(nn.ReLU(inplace=True))
    layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def conv4(widths: tuple[int, ...], image_size: int, pool: str, final_relu: bool) -> Backbone:
    """Blocks of 3 × 3 convolution, BatchNorm, ReLU and 2 × 2 max-pooling, one per width."""
    if pool not in ("flatten", "mean"):
        raise RecipeError(f"conv4: pool is {pool!r}; accepted: 'flatten', 'mean'")
    inputs = (3, *widths[:-1])
    stages = [
        _block(inp, out, last=i == len(widths) - 1 and not final_relu)
        for i, (inp, out) in enumerate(zip(inputs, widths, strict=True))
    ]
    positions = (image_size // 2 ** len(widths)) ** 2
    backbone = Backbone(stages, widths[-1] * (positions if pool == "flatten" else 1), image_size, pool)
    initialise(backbone)
    return backbone


@register("conv4-64")
def conv4_64(image_size: int = 84, pool: str = "flatten", final_relu: bool = False) -> Backbone:
    """Conv-4-64: four blocks of 64; at 84 px the 5 × 5 × 64 map flattened, 1,600 features.

    That is what the Conv-4-64 rows (Prototypical Nets, LwoF) use; like LwoF's, no ReLU closes it, because
    a cosine classifier profits from features of both signs.
    """
    return conv4((64, 64, 64, 64), image_size, pool, final_relu)


@register("conv4-512")
def conv4_512(image_size: int = 84, pool: str = "mean", final_relu: bool = False) -> Backbone:
    """Conv-4-512: widths 96-192-384-512 as in R2-D2's row, averaged over positions, 512 features.

    R2-D2 joins the last two blocks' maps, 72,576 values; averaging keeps stage 2's class weights of a
    usable size, and ``pool="flatten"`` gives the last map whole.
    """
    return conv4((96, 192, 384, 512), image_size, pool, final_relu)
