"""Features of pictures, for validation and extraction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from wdae.backbones.base import Backbone
from wdae.config.augment import AugmentConfig
from wdae.data.augment import Draws, apply_augment, prepare, sample_augment

MakeViews = Callable[[Tensor, int], Iterator[Tensor]]
"""From a batch of pictures and the index of its first to the views that the backbone is to embed."""

_CPU_PIXELS = 4 * 224**2  # of larger batches, the maps between layers leave a core's cache


def batch_on(device: torch.device, side: int, batch: int) -> int:
    """Pictures of ``side`` that a device embeds at once, ``batch`` at most; a CPU takes few, which is faster.

    >>> [batch_on(torch.device("cpu"), side, 64) for side in (72, 224, 448)]
    [38, 4, 1]
    """
    return max(1, min(batch, _CPU_PIXELS // side**2)) if device.type == "cpu" else batch


def embed(
    backbone: Backbone,
    images: Tensor,
    config: AugmentConfig,
    *,
    device: torch.device,
    batch: int = 512,
    precision: str = "bf16",
    flip_average: bool = False,
    compiled: bool = False,
) -> Tensor:
    """Features ``[M, D]`` float32, on ``device``, of whole pictures ``[M, 3, S, S]`` uint8 on any device.

    Args:
        flip_average: the mean of the unit-length features of each picture and its mirror image.
        compiled: use compiled stages, where there are any.
    """

    def views(piece: Tensor, _: int) -> Iterator[Tensor]:
        pictures = prepare(piece, config)
        yield pictures
        if flip_average:
            yield pictures.flip(-1)

    return _features(backbone, images, views, device, batch, precision, compiled)


def embed_crops(
    backbone: Backbone,
    images: Tensor,
    config: AugmentConfig,
    count: int,
    generator: torch.Generator,
    *,
    device: torch.device,
    batch: int = 512,
    precision: str = "bf16",
    compiled: bool = False,
) -> Tensor:
    """Means ``[M, D]`` of the unit-length features of ``count`` views of each picture.

    They are drawn as ``config`` says; what is drawn does not depend on the batch. Other arguments: as those
    of :func:`embed`.
    """
    height, width = images.shape[-2:]
    drawn = [sample_augment(len(images), height, width, config, generator) for _ in range(count)]

    def views(piece: Tensor, start: int) -> Iterator[Tensor]:
        for draws in drawn:
            here = [draw[start : start + len(piece)] for draw in draws]
            short = len(piece) - len(here[0])  # rows that only fill the last batch
            here = [torch.cat([draw, draw[:1].expand(short, *draw.shape[1:])]).to(device) for draw in here]
            yield apply_augment(piece, Draws(*here), config)

    return _features(backbone, images, views, device, batch, precision, compiled)


@torch.no_grad()
def _features(
    backbone: Backbone,
    images: Tensor,
    views: MakeViews,
    device: torch.device,
    batch: int,
    precision: str,
    compiled: bool,
) -> Tensor:
    """The :func:`mean_view` of each picture."""
    features_of = backbone if compiled else partial(eager_features, backbone)
    out = torch.empty(len(images), backbone.feature_dim, device=device)
    batch = batch_on(device, images.shape[-1], batch)
    for start in range(0, len(images), batch):
        piece = images[start : start + batch].to(device)
        count = len(piece)
        if count < batch and start and device.type == "cuda":
            # A last batch of another size would make cuDNN choose its algorithms again.
            piece = torch.cat([piece, piece[:1].expand(batch - count, -1, -1, -1)])
        seen = []
        for pictures in views(piece, start):  # Outside autocast: crops are matrix products.
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                seen.append(features_of(pictures).float())
        out[start : start + count] = mean_view(seen)[:count]
    return out


def mean_view(views: Sequence[Tensor]) -> Tensor:
    """One view's features as the backbone gives them; of several views, the mean of unit-length features."""
    return views[0] if len(views) == 1 else torch.stack([F.normalize(view, dim=-1) for view in views]).mean(0)


def eager_features(backbone: Backbone, images: Tensor) -> Tensor:
    """The backbone's features without its compiled stages: those are compiled for training alone.

    Compiling them for evaluation too would take longer than the few seconds that it saves.
    """
    hidden = images
    for stage in backbone.stages:
        hidden = stage.forward(hidden)
    return backbone.pooled(hidden)


def folded(backbone: Backbone) -> Backbone:
    """A copy for evaluation, each BatchNorm folded into the convolution before it: the same to rounding."""
    copied = deepcopy(backbone).eval()
    for part in list(copied.modules()):
        if type(part) is nn.Sequential:
            for place, (conv, norm) in enumerate(pairwise(list(part))):
                if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d:
                    part[place], part[place + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return copied
