"""Colour jitter and normalisation of a whole batch at once, each picture with its own factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in Pillow's conversion to grey


def sample_jitter(
    count: int,
    generator: torch.Generator,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Factors for brightness, contrast and saturation, and a shift of hue; float32 [count, 4].

    They are applied in this order always, so that one pass serves the whole batch.

    A factor is uniform in [max(0, 1 - strength), 1 + strength], the shift in [-hue, hue] turns of the circle.
    """
    ranges = [(max(0.0, 1 - strength), 1 + strength) for strength in (brightness, contrast, saturation)]
    ranges.append((-hue, hue))
    draws = torch.rand(count, 4, generator=generator, device=generator.device)
    return torch.stack([low + (high - low) * draws[:, i] for i, (low, high) in enumerate(ranges)], 1)


def apply_jitter(batch: Tensor, factors: Tensor, *, hue: bool = True) -> Tensor:
    """Apply the factors of :func:`sample_jitter`; values are clipped to 0 … 1 after each change.

    Args:
        hue: whether to look at the hue shifts at all; they cost more than the rest together.

    Shapes:
        batch float [B, 3, H, W] in 0 … 1; factors [B, 4].
    """
    by_brightness, by_contrast, by_saturation, shift = factors[..., None, None, None].unbind(
        1
    )  # [B, 1, 1, 1]
    batch = (batch * by_brightness).clamp(0, 1)
    mean = _grey(batch).mean((-2, -1), keepdim=True)
    batch = (mean + (batch - mean) * by_contrast).clamp(0, 1)
    grey = _grey(batch)
    batch = (grey + (batch - grey) * by_saturation).clamp(0, 1)
    return _shift_hue(batch, shift[:, 0]) if hue else batch


def normalise(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract the channels' mean and divide by their standard deviation.

    Shapes:
        batch float [B, 3, H, W] → the same.
    """
    # Filled in place, not copied from the host: a copy to a GPU would wait for all work queued there.
    centre, spread = (
        torch.stack([batch.new_full((), value) for value in values])[:, None, None] for values in (mean, std)
    )
    return (batch - centre) / spread


def _grey(batch: Tensor) -> Tensor:
    red, green, blue = batch.unbind(1)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue)[:, None]  # [B, 1, H, W]


def _shift_hue(batch: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of HSV by ``shift`` of the circle. Shapes: [B, 3, H, W], [B, 1, 1] → [B, 3, H, W]."""
    red, green, blue = batch.unbind(1)
    value = batch.amax(1)
    spread = value - batch.amin(1)  # saturation times value
    safe = torch.where(spread == 0, 1, spread)  # grey has no hue; any will do, as the spread is zero
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * shift
    channels = [(offset + sixth) % 6 for offset in (5, 3, 1)]
    return torch.stack([value - spread * torch.minimum(k, 4 - k).clamp(0, 1) for k in channels], 1)
