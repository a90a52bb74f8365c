"""Crops and flips of a whole batch at once, each picture with its own place.

``sample_*`` draws the places, ``apply_*`` does the work; only the first needs a generator, so the second can
be compiled, and checked against a slow loop.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from wdae.errors import RecipeError

PaddingMode = Literal["zeros", "reflect"]

_TRIES = 10


def sample_padded_crop(
    count: int, height: int, width: int, size: int, padding: int, generator: torch.Generator
) -> Tensor:
    """Boxes (top, left, height, width), int64 [count, 4]; top and left count from the unpadded corner."""
    spare = (height + 2 * padding - size, width + 2 * padding - size)
    if min(spare) < 0:
        raise RecipeError(
            f"a crop of {size} pixels does not fit into {height} × {width} pixels padded by {padding};"
            " give a smaller size or more padding"
        )
    draws = torch.rand(count, 2, generator=generator, device=generator.device)
    # Plain numbers, no tensor made from them: copying one to a GPU would wait for all work queued there.
    axes = [(draws[:, axis] * (room + 1)).long().clamp(max=room) - padding for axis, room in enumerate(spare)]
    extent = torch.full_like(axes[0], size)
    return torch.stack([*axes, extent, extent], 1)


def apply_padded_crop(batch: Tensor, boxes: Tensor, size: int, mode: PaddingMode = "zeros") -> Tensor:
    """Cut the boxes out; what lies outside a picture is black, or its mirror image.

    Shapes:
        batch [B, C, H, W]; boxes int64 [B, 4], of which top and left are used.
    """
    count, _, height, width = batch.shape
    steps = torch.arange(size, device=batch.device)
    rows, columns = boxes[:, 0, None] + steps, boxes[:, 1, None] + steps  # [B, S]
    if mode == "reflect":
        rows, columns = _reflect(rows, height), _reflect(columns, width)
    at = torch.arange(count, device=batch.device)[:, None, None]
    inside_rows, inside_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    # Channels come last while indexing: one index serves all of a pixel's channels.
    cut = batch.permute(0, 2, 3, 1)[at, inside_rows[:, :, None], inside_columns[:, None, :]]  # [B, S, S, C]
    if mode == "zeros":
        inside = (rows == inside_rows)[:, :, None] & (columns == inside_columns)[:, None, :]
        cut = cut * inside[..., None]
    return cut.permute(0, 3, 1, 2)


def sample_resized_crop(
    count: int,
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Boxes (top, left, height, width), int64 [count, 4], inside the picture.

    The share of the area is uniform, the aspect ratio (width to height) uniform in its logarithm; the first
    of ten draws that fits is taken, and the largest central square where none does.
    """
    draws = torch.rand(count, _TRIES + 1, 2, generator=generator, device=generator.device)
    shares = area[0] + (area[1] - area[0]) * draws[:, :_TRIES, 0]
    low, high = math.log(aspect[0]), math.log(aspect[1])
    ratios = (low + (high - low) * draws[:, :_TRIES, 1]).exp()
    heights = (shares * height * width / ratios).sqrt().round().long()  # [B, tries]
    widths = (shares * height * width * ratios).sqrt().round().long()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    any_fits = fits.any(1)
    square = min(height, width)
    tall = torch.where(any_fits, heights.gather(1, first)[:, 0], square)
    wide = torch.where(any_fits, widths.gather(1, first)[:, 0], square)
    room = torch.stack([height - tall, width - wide], 1)
    random_corner = torch.minimum((draws[:, _TRIES] * (room + 1)).long(), room)
    corner = torch.where(any_fits[:, None], random_corner, room // 2)
    return torch.cat([corner, tall[:, None], wide[:, None]], 1)


def apply_resized_crop(batch: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Resample the boxes to ``size`` × ``size``: bilinear, antialiased, each picture at its own scale.

    Resampling is linear in rows and in columns, so it is two batched matrix products with one small matrix
    for each picture and axis: no gather, no loop, and exactly what resampling the cut-out alone would give.

    Shapes:
        batch [B, C, H, W]; boxes int64 [B, 4] → float32 [B, C, size, size].
    """
    height, width = batch.shape[-2:]
    down = _resampling(boxes[:, 0], boxes[:, 2], height, size)  # [B, S, H]
    across = _resampling(boxes[:, 1], boxes[:, 3], width, size)  # [B, S, W]
    return down[:, None] @ batch.float() @ across[:, None].transpose(-1, -2)


def sample_flip(count: int, probability: float, generator: torch.Generator) -> Tensor:
    """Which pictures to mirror, bool [count]."""
    return torch.rand(count, generator=generator, device=generator.device) < probability


def apply_flip(batch: Tensor, flips: Tensor) -> Tensor:
    """Mirror the pictures marked in ``flips``, bool [B]."""
    return torch.where(flips[:, None, None, None], batch.flip(-1), batch)


def _reflect(positions: Tensor, length: int) -> Tensor:
    """Positions outside 0 … length - 1 mirrored inside, the edge pixel not repeated."""
    last = length - 1
    return last - (last - positions.abs()).abs()


def _resampling(start: Tensor, extent: Tensor, length: int, size: int) -> Tensor:
    """The triangle filter's weights, float32 [B, size, length]; rows sum to one, zero outside the box."""
    positions = torch.arange(length, device=start.device) + 0.5  # [L]
    scale = extent.float() / size  # [B]
    centres = start[:, None] + (torch.arange(size, device=start.device) + 0.5) * scale[:, None]  # [B, S]
    # Wider than a pixel when shrinking, which is the antialiasing.
    reach = scale.clamp(min=1.0)[:, None, None]
    weights = (1 - (positions - centres[..., None]).abs() / reach).clamp(min=0)  # [B, S, L]
    inside = (positions > start[:, None]) & (positions < (start + extent)[:, None])  # [B, L]
    weights = weights * inside[:, None]
    return weights / weights.sum(-1, keepdim=True)
