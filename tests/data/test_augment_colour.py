"""Batched colour changes equal slow ones, picture by picture and pixel by pixel."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from seeded import generator

from wdae.data import colour as A


def pictures(count: int = 4, side: int = 7) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=generator(0))


def slow_jitter(picture: np.ndarray, brightness: float, contrast: float, saturation: float, hue: float):
    """One picture, float [3, H, W], by the definitions."""

    def grey(p: np.ndarray) -> np.ndarray:
        return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]

    out = np.clip(picture * brightness, 0, 1)
    mean = grey(out).mean()
    out = np.clip(contrast * out + (1 - contrast) * mean, 0, 1)
    out = np.clip(saturation * out + (1 - saturation) * grey(out), 0, 1)
    for y in range(out.shape[1]):
        for x in range(out.shape[2]):
            h, s, v = colorsys.rgb_to_hsv(*out[:, y, x])
            out[:, y, x] = colorsys.hsv_to_rgb((h + hue) % 1, s, v)
    return out


def test_jitter_equals_the_slow_definition():
    batch = pictures()
    factors = A.sample_jitter(4, generator(1), brightness=0.9, contrast=0.8, saturation=0.7, hue=0.5)
    out = A.apply_jitter(batch, factors)
    for picture, row, got in zip(batch.double().numpy(), factors.tolist(), out.numpy(), strict=True):
        np.testing.assert_allclose(got, slow_jitter(picture.copy(), *row), atol=2e-5)


def test_grey_and_black_pixels_have_no_hue_to_turn():
    batch = torch.tensor([0.0, 0.5, 1.0])[None, None, :, None].expand(1, 3, 3, 1).contiguous()
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.3]])
    torch.testing.assert_close(A.apply_jitter(batch, factors), batch)


@pytest.mark.parametrize(
    ("column", "enhancer"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
def test_each_change_is_pillows_up_to_rounding(column, enhancer):
    picture = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    batch = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255
    for factor in (0.3, 1.0, 1.7):
        factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
        factors[0, column] = factor
        out = (A.apply_jitter(batch, factors) * 255)[0].permute(1, 2, 0).numpy()
        assert np.abs(out - np.asarray(enhancer(Image.fromarray(picture)).enhance(factor))).max() <= 1.5


def test_factors_lie_in_their_ranges():
    factors = A.sample_jitter(20_000, generator(2), brightness=0.4, contrast=0.2, saturation=1.0, hue=0.1)
    for column, (low, high) in enumerate([(0.6, 1.4), (0.8, 1.2), (0.0, 2.0), (-0.1, 0.1)]):
        values = factors[:, column]
        width = high - low
        assert low <= values.min() < low + width / 100
        assert high - width / 100 < values.max() <= high


def test_no_strength_changes_nothing():
    batch = pictures()
    torch.testing.assert_close(A.apply_jitter(batch, A.sample_jitter(len(batch), generator(3))), batch)


def test_normalise():
    batch = pictures(2)
    out = A.normalise(batch, (0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)]):
        torch.testing.assert_close(out[:, channel], (batch[:, channel] - mean) / std)
