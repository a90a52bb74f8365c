"""Four convolutions: Conv-4-64 and Conv-4-512 of the paper's tables, MAML's and GNN's.

Prototypical networks: Snell et al., NeurIPS 2017, https://arxiv.org/abs/1703.05175. LwoF: Gidaris and
Komodakis, CVPR 2018, https://arxiv.org/abs/1804.09458. R2-D2: Bertinetto et al., ICLR 2019,
https://arxiv.org/abs/1805.08136. GNN: Garcia and Bruna, ICLR 2018, https://arxiv.org/abs/1711.04043. MAML:
Finn et al., ICML 2017, https://arxiv.org/abs/1703.03400. Relation networks: Sung et al., CVPR 2018,
https://arxiv.org/abs/1711.06025.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wdae.backbones.base import Backbone, initialise
from wdae.backbones.registry import register
from wdae.errors import RecipeError

POOLS = ("flatten", "mean", "joined")


def _block(
    in_width: int, out_width: int, *, pool: bool, relu: bool, leak: float, dropout: float
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(in_width, out_width, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_width),
    ]
    if pool:  # before the ReLU, which comes to the same on a quarter of the values
        layers.append(nn.MaxPool2d(2))
    if relu:
        layers.append(nn.LeakyReLU(leak, inplace=True) if leak else nn.ReLU(inplace=True))
    if dropout:
        layers.append(nn.Dropout2d(dropout))
    return nn.Sequential(*layers)


class _Joined(nn.Module):
    """A block's output beside its input, both flattened."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, maps: Tensor) -> Tensor:
        """``[B, C, S, S]`` to ``[B, D]``."""
        return torch.cat([maps.flatten(1), self.block(maps).flatten(1)], dim=1)


def conv4(
    widths: tuple[int, ...],
    image_size: int,
    pool: str,
    final_relu: bool,
    pooled_blocks: int | None = None,
    leak: float = 0.0,
    dropout: Sequence[float] = (),
) -> Backbone:
    """Blocks of 3 × 3 convolution, BatchNorm, 2 × 2 max-pooling and ReLU, one per width.

    Args:
        pool: ``flatten`` keeps all positions of the last map, ``mean`` averages them, ``joined`` sets the
            maps of the last two blocks side by side.
        pooled_blocks: how many blocks, from the first, pool; all by default.
        leak: slope of the ReLUs below zero.
        dropout: share of whole maps that a block loses in training, for each block; none by default.
    """
    if pool not in POOLS:
        raise RecipeError(f"conv4: pool is {pool!r}; accepted: {', '.join(map(repr, POOLS))}")
    n_pooled = len(widths) if pooled_blocks is None else pooled_blocks
    if not 0 <= n_pooled <= len(widths):
        raise RecipeError(f"conv4: pooled_blocks is {pooled_blocks}; accepted: 0 to {len(widths)}")
    lost = tuple(dropout) or (0.0,) * len(widths)
    if len(lost) != len(widths) or not all(0 <= share < 1 for share in lost):
        raise RecipeError(f"conv4: dropout is {dropout}; give {len(widths)} shares, at least 0 and below 1")
    inputs, last = (3, *widths[:-1]), len(widths) - 1
    stages: list[nn.Module] = [
        _block(inp, out, pool=i < n_pooled, relu=i < last or final_relu, leak=leak, dropout=lost[i])
        for i, (inp, out) in enumerate(zip(inputs, widths, strict=True))
    ]
    sides = [image_size // 2 ** min(n, n_pooled) for n in range(1, len(widths) + 1)]  # of each block's map
    dim = widths[-1] * (1 if pool == "mean" else sides[-1] ** 2)
    if pool == "joined":
        stages[-1] = _Joined(stages[-1])
        dim += widths[-2] * sides[-2] ** 2
    backbone = Backbone(stages, dim, image_size, pool)
    initialise(backbone)
    return backbone


@register("conv4-32")
def conv4_32(image_size: int = 84, pool: str = "flatten", final_relu: bool = True) -> Backbone:
    """Conv-4-32: four blocks of 32, MAML's network on MiniImageNet; 800 features at 84 px."""
    return conv4((32, 32, 32, 32), image_size, pool, final_relu)


@register("conv4-64")
def conv4_64(
    image_size: int = 84, pool: str = "flatten", final_relu: bool = False, pooled_blocks: int = 4
) -> Backbone:
    """Conv-4-64: four blocks of 64; at 84 px the 5 × 5 × 64 map flattened, 1,600 features.

    That is what the Conv-4-64 rows (Prototypical Nets, LwoF) use; like LwoF's, no ReLU closes it, because
    a cosine classifier profits from features of both signs. Relation networks pool in the first two blocks
    alone (``pooled_blocks=2``).
    """
    return conv4((64, 64, 64, 64), image_size, pool, final_relu, pooled_blocks)


@register("conv4-256")
def conv4_256(
    image_size: int = 84,
    pool: str = "flatten",
    final_relu: bool = False,
    leak: float = 0.0,
    dropout: Sequence[float] = (),
) -> Backbone:
    """Conv-4-256: 64-96-128-256, as below Garcia and Bruna's graph network; 6,400 features at 84 px.

    Theirs has ``final_relu``, ``leak=0.2`` and ``dropout=(0, 0, 0.4, 0.5)``.
    """
    return conv4((64, 96, 128, 256), image_size, pool, final_relu, leak=leak, dropout=dropout)


@register("conv4-512")
def conv4_512(image_size: int = 84, pool: str = "mean", final_relu: bool = False) -> Backbone:
    """Conv-4-512: widths 96-192-384-512 as in R2-D2's row, averaged over positions, 512 features.

    R2-D2 joins the last two blocks' maps (``pool="joined"``); averaging keeps stage 2's class weights of a
    usable size, and ``pool="flatten"`` gives the last map whole.
    """
    return conv4((96, 192, 384, 512), image_size, pool, final_relu)
