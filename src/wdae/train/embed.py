"""Features of pictures without variation: what validation and extraction share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.backbones import Backbone
from wdae.data.augment import AugmentConfig, prepare


@torch.no_grad()
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
    """Features ``[M, D]`` float32, on ``device``, of pictures ``[M, 3, S, S]`` uint8 on any device.

    Args:
        flip_average: the mean of the unit-length features of each picture and its mirror image.
        compiled: use compiled stages, where there are any.
    """
    features_of = backbone if compiled else partial(eager_features, backbone)
    out = torch.empty(len(images), backbone.feature_dim, device=device)
    for start in range(0, len(images), batch):
        piece = images[start : start + batch].to(device)
        count = len(piece)
        if count < batch and start:
            # A last batch of another size would make cuDNN choose its algorithms anew.
            piece = torch.cat([piece, piece[:1].expand(batch - count, -1, -1, -1)])
        pictures = prepare(piece, config)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            features = features_of(pictures).float()
            if flip_average:
                mirrored = features_of(pictures.flip(-1)).float()
                features = (F.normalize(features, dim=1) + F.normalize(mirrored, dim=1)) / 2
        out[start : start + count] = features[:count]
    return out


def eager_features(backbone: Backbone, images: Tensor) -> Tensor:
    """The backbone's features without its compiled stages: those are compiled for training alone.

    Compiling them for evaluation too would take longer than the few seconds that it saves.
    """
    hidden = images
    for stage in backbone.stages:
        hidden = stage.forward(hidden)
    return backbone.pooled(hidden)
