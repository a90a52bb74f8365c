"""Augmentation of training batches on any device, from an explicit generator; normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wdae.config.augment import AugmentConfig
from wdae.data.colour import apply_jitter, normalise, sample_jitter
from wdae.data.crops import (
    apply_flip,
    apply_padded_crop,
    apply_resized_crop,
    sample_flip,
    sample_padded_crop,
    sample_resized_crop,
)
from wdae.errors import RecipeError


class Draws(NamedTuple):
    """Everything random about one batch. boxes int64 [B, 4]; flips bool [B]; factors float32 [B, 4]."""

    boxes: Tensor
    flips: Tensor
    factors: Tensor


def augment(batch: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Vary and normalise a batch, on whatever device it lies.

    Shapes:
        batch uint8 [B, 3, H, W] → float32 [B, 3, size, size], channels last in memory.

    >>> pictures = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> augment(pictures, AugmentConfig(padding=4, hue=0.1), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """
    count, _, height, width = batch.shape
    draws = sample_augment(count, height, width, config, generator)
    return apply_augment(batch, Draws(*(draw.to(batch.device) for draw in draws)), config)


def sample_augment(
    count: int, height: int, width: int, config: AugmentConfig, generator: torch.Generator
) -> Draws:
    """Draw for ``count`` pictures of ``height`` × ``width``, on the generator's device."""
    size = config.size or min(height, width)
    if config.crop == "pad":
        boxes = sample_padded_crop(count, height, width, size, config.padding, generator)
    elif config.crop == "resized":
        boxes = sample_resized_crop(count, height, width, config.area, config.aspect, generator)
    else:
        boxes = _central_boxes(count, height, width, size, generator.device)
    factors = sample_jitter(
        count,
        generator,
        brightness=config.brightness,
        contrast=config.contrast,
        saturation=config.saturation,
        hue=config.hue,
    )
    return Draws(boxes, sample_flip(count, config.flip, generator), factors)


def apply_augment(batch: Tensor, draws: Draws, config: AugmentConfig) -> Tensor:
    """Apply what was drawn. Nothing random, no loop over pictures: fit for ``torch.compile``."""
    size = config.size or min(batch.shape[-2:])
    if config.crop == "resized":
        batch = apply_resized_crop(batch, draws.boxes, size)
    else:
        batch = apply_padded_crop(batch, draws.boxes, size, config.padding_mode)
    if config.flip > 0:
        batch = apply_flip(batch, draws.flips)
    batch = batch.float() / 255
    if config.jitters:
        batch = apply_jitter(batch, draws.factors, hue=config.hue > 0)
    return normalise(batch, config.mean, config.std).contiguous(memory_format=torch.channels_last)


def prepare(batch: Tensor, config: AugmentConfig) -> Tensor:
    """The same without the variation, for evaluation and extraction: central square, normalised.

    Shapes:
        batch uint8 [B, 3, H, W] → float32 [B, 3, size, size], channels last in memory.
    """
    count, _, height, width = batch.shape
    size = config.size or min(height, width)
    if (height, width) != (size, size):
        boxes = _central_boxes(count, height, width, size, batch.device)
        batch = apply_padded_crop(batch, boxes, size)
    return normalise(batch.float() / 255, config.mean, config.std).contiguous(
        memory_format=torch.channels_last
    )


def _central_boxes(count: int, height: int, width: int, size: int, device: torch.device) -> Tensor:
    if size > min(height, width):
        raise RecipeError(
            f"a square of {size} pixels does not fit into pictures of {height} × {width};"
            " decode them at that size, or ask for a smaller one"
        )
    box = ((height - size) // 2, (width - size) // 2, size, size)
    return torch.stack([torch.full((count,), value, device=device) for value in box], 1)
