"""What happens to a training batch between memory and the backbone, as one recipe."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from wdae.data.augment.colour import apply_jitter, normalise, sample_jitter
from wdae.data.augment.crop import (
    PaddingMode,
    apply_flip,
    apply_padded_crop,
    apply_resized_crop,
    sample_flip,
    sample_padded_crop,
    sample_resized_crop,
)
from wdae.errors import RecipeError

Strength = Annotated[float, Field(ge=0, le=1)]
Triple = tuple[float, float, float]


class AugmentConfig(BaseModel):
    """How training pictures are varied: crop, flip, colour jitter, in this order; then normalised.

    Args:
        size: side of the square that comes out; that of the pictures by default.
        crop: ``pad`` (pad, then cut a square), ``resized`` (random area and aspect) or ``none``.
        padding: pixels on every side, for ``pad``; outside is black (``zeros``) or mirrored (``reflect``).
        area: smallest and largest share of the picture, for ``resized``.
        aspect: smallest and largest width-to-height ratio, for ``resized``.
        flip: probability of mirroring left to right.
        brightness: strength of the jitter, as those of contrast, saturation and hue (at most half a turn).
        mean: of the normalisation; by default ImageNet's, as those of ``std``.

    >>> from wdae.data.augment import augment
    >>> pictures = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> augment(pictures, AugmentConfig(padding=4, hue=0.1), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[int, Field(ge=1)] | None = None
    crop: Literal["pad", "resized", "none"] = "pad"
    padding: Annotated[int, Field(ge=0)] = 8
    padding_mode: PaddingMode = "zeros"
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: Strength = 0.5
    brightness: Strength = 0.4
    contrast: Strength = 0.4
    saturation: Strength = 0.4
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)

    @model_validator(mode="after")
    def _ranges(self) -> AugmentConfig:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area is {self.area}; give two shares in 0 … 1, the smaller first")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"aspect is {self.aspect}; give two positive ratios, the smaller first")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; give three positive numbers")
        return self

    @property
    def jitters(self) -> bool:
        """Whether colours change at all."""
        return max(self.brightness, self.contrast, self.saturation, self.hue) > 0


class Draws(NamedTuple):
    """Everything random about one batch. boxes int64 [B, 4]; flips bool [B]; factors float32 [B, 4]."""

    boxes: Tensor
    flips: Tensor
    factors: Tensor


def augment(batch: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Vary and normalise a batch, on whatever device it lies.

    Shapes:
        batch uint8 [B, 3, H, W] → float32 [B, 3, size, size], channels last in memory.
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
