"""Batched crops and flips equal a slow loop over single pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from seeded import generator

from wdae.data import crops as A
from wdae.errors import RecipeError


def pictures(count: int = 6, height: int = 17, width: int = 13, channels_last: bool = False) -> torch.Tensor:
    batch = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator(0))
    return batch.contiguous(memory_format=torch.channels_last) if channels_last else batch


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_padded_crop_equals_padding_and_slicing(mode, channels_last):
    batch = pictures(channels_last=channels_last)
    padding, size = 4, 11
    boxes = A.sample_padded_crop(len(batch), 17, 13, size, padding, generator(1))
    out = A.apply_padded_crop(batch, boxes, size, mode)
    assert out.dtype == torch.uint8
    for picture, box, cut in zip(batch, boxes.tolist(), out, strict=True):
        name = {"zeros": "constant", "reflect": "reflect"}[mode]
        padded = F.pad(picture[None].float(), [padding] * 4, mode=name)[0]
        top, left = box[0] + padding, box[1] + padding
        assert torch.equal(cut.float(), padded[:, top : top + size, left : left + size])


def test_padded_crop_reaches_every_place_equally_often():
    boxes = A.sample_padded_crop(20_000, 8, 8, 8, 2, generator(2))
    for axis in (0, 1):
        places, counts = boxes[:, axis].unique(return_counts=True)
        assert places.tolist() == [-2, -1, 0, 1, 2]
        assert (counts / 4000 - 1).abs().max() < 0.06


def test_padded_crop_that_cannot_fit_is_refused():
    with pytest.raises(RecipeError, match="crop of 20 pixels does not fit into 8 × 8"):
        A.sample_padded_crop(1, 8, 8, 20, 2, generator(0))


@pytest.mark.parametrize("size", [5, 11, 32])
def test_resized_crop_equals_cutting_and_resampling_each(size):
    batch = pictures()
    boxes = A.sample_resized_crop(len(batch), 17, 13, (0.1, 1.0), (0.5, 2.0), generator(3))
    out = A.apply_resized_crop(batch, boxes, size)
    for picture, (top, left, height, width), got in zip(batch, boxes.tolist(), out, strict=True):
        cut = picture[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(cut, (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-5)


def test_resized_crop_is_pillows_resampling_up_to_rounding():
    batch = pictures(4, 40, 40)
    boxes = A.sample_resized_crop(4, 40, 40, (0.2, 0.9), (3 / 4, 4 / 3), generator(4))
    out = A.apply_resized_crop(batch, boxes, 16).numpy()
    for picture, (top, left, height, width), got in zip(batch.numpy(), boxes.tolist(), out, strict=True):
        cut = Image.fromarray(picture.transpose(1, 2, 0)[top : top + height, left : left + width])
        expected = np.asarray(cut.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(got - expected).max() <= 1.5


def test_resized_boxes_lie_inside_and_have_the_asked_area_and_aspect():
    height, width = 60, 90
    boxes = A.sample_resized_crop(5000, height, width, (0.2, 0.6), (0.5, 2.0), generator(5)).double()
    top, left, tall, wide = boxes.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    share, ratio = tall * wide / (height * width), wide / tall
    assert 0.19 < share.min() < 0.22
    assert 0.57 < share.max() < 0.62
    assert abs(ratio.log().mean()) < 0.1  # symmetric in the logarithm, but for the boxes that do not fit
    assert 0.47 < ratio.min() < 0.55


def test_boxes_that_never_fit_become_the_central_square():
    boxes = A.sample_resized_crop(3, 10, 30, (1.0, 1.0), (1.0, 1.0), generator(6))
    assert boxes.tolist() == [[0, 10, 10, 10]] * 3


def test_flip_equals_mirroring_each():
    batch = pictures()
    flips = torch.tensor([True, False, True, True, False, False])
    out = A.apply_flip(batch, flips)
    for picture, turned, got in zip(batch, flips.tolist(), out, strict=True):
        assert torch.equal(got, picture[:, :, torch.arange(12, -1, -1)] if turned else picture)


def test_flip_probability():
    flips = A.sample_flip(10_000, 0.3, generator(7)).float().mean().item()
    assert math.isclose(flips, 0.3, abs_tol=0.02)
    assert not A.sample_flip(100, 0.0, generator(8)).any()
    assert A.sample_flip(100, 1.0, generator(8)).all()


def test_the_same_generator_state_gives_the_same_crops():
    for function in (
        lambda g: A.sample_padded_crop(6, 17, 13, 13, 3, g),
        lambda g: A.sample_resized_crop(6, 17, 13, (0.2, 1.0), (0.7, 1.4), g),
        lambda g: A.sample_flip(6, 0.5, g),
    ):
        assert torch.equal(function(generator(9)), function(generator(9)))
        assert not torch.equal(function(generator(9)), function(generator(10)))
