"""The recipe as a whole: order of steps, shapes, devices, generators, refusals."""

from __future__ import annotations

import pydantic
import pytest
import torch
from seeded import generator

from wdae.data import augment as A
from wdae.errors import RecipeError


def pictures(count: int = 5, side: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator(0)).permute(
        0, 3, 1, 2
    )


@pytest.mark.parametrize("crop", ["pad", "resized", "none"])
def test_augment_equals_its_steps_one_picture_at_a_time(crop):
    config = A.AugmentConfig(crop=crop, padding=3, size=12, hue=0.1)
    batch = pictures()
    draws = A.sample_augment(5, 16, 16, config, generator(1))
    out = A.apply_augment(batch, draws, config)
    assert out.shape == (5, 3, 12, 12)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    for i in range(5):
        picture, boxes = batch[i : i + 1], draws.boxes[i : i + 1]
        cut = (
            A.apply_resized_crop(picture, boxes, 12)
            if crop == "resized"
            else A.apply_padded_crop(picture, boxes, 12)
        )
        cut = cut.flip(-1) if draws.flips[i] else cut
        alone = A.normalise(
            A.apply_jitter(cut.float() / 255, draws.factors[i : i + 1]), config.mean, config.std
        )
        torch.testing.assert_close(out[i : i + 1], alone)


def test_augment_is_drawn_from_its_generator_only():
    config = A.AugmentConfig()
    torch.manual_seed(0)
    first = A.augment(pictures(), config, generator(2))
    torch.manual_seed(1)
    assert torch.equal(first, A.augment(pictures(), config, generator(2)))
    assert not torch.equal(first, A.augment(pictures(), config, generator(3)))


def test_with_everything_off_augment_is_prepare():
    config = A.AugmentConfig(crop="none", flip=0, brightness=0, contrast=0, saturation=0)
    batch = pictures()
    out = A.augment(batch, config, generator(0))
    torch.testing.assert_close(out, A.prepare(batch, config))
    mean, std = torch.tensor(config.mean)[:, None, None], torch.tensor(config.std)[:, None, None]
    torch.testing.assert_close(out, (batch.double() / 255 - mean) / std, check_dtype=False)


def test_prepare_takes_the_central_square():
    config = A.AugmentConfig(size=10, mean=(0, 0, 0), std=(1, 1, 1))
    batch = pictures()
    torch.testing.assert_close(A.prepare(batch, config), batch[:, :, 3:13, 3:13].float() / 255)


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_apply_traces_without_a_break(crop):
    """What torch.compile needs: one graph. (No code is generated here: a compiler may be absent.)"""
    config = A.AugmentConfig(crop=crop, hue=0.1)
    batch = pictures()
    draws = A.sample_augment(5, 16, 16, config, generator(1))
    traced = torch.compile(lambda b, d: A.apply_augment(b, d, config), fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(batch, draws), A.apply_augment(batch, draws, config))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_gpu_equals_cpu(crop):
    config = A.AugmentConfig(crop=crop, hue=0.1)
    batch = pictures()
    draws = A.sample_augment(5, 16, 16, config, generator(1))
    there = A.apply_augment(batch.cuda(), A.Draws(*(draw.cuda() for draw in draws)), config)
    torch.testing.assert_close(there.cpu(), A.apply_augment(batch, draws, config), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"area": (0.5, 0.2)},
        {"area": (0.0, 1.0)},
        {"aspect": (2, 1)},
        {"std": (1, 0, 1)},
        {"flip": 1.5},
        {"crop": "random"},
        {"padding": -1},
        {"colour": 0.4},
    ],
)
def test_wrong_recipes_are_refused(wrong):
    with pytest.raises(pydantic.ValidationError):
        A.AugmentConfig(**wrong)


def test_a_square_larger_than_the_pictures_is_refused():
    with pytest.raises(RecipeError, match="square of 20 pixels does not fit"):
        A.prepare(pictures(), A.AugmentConfig(size=20))
