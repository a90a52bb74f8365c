"""Streaming gives every picture once, the same whatever the number of processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wdae.data import CentralSquare, RandomSquare, open_dataset, pixels
from wdae.data.stream import stream
from wdae.errors import DataError


def gathered(*arguments, **options) -> dict[int, torch.Tensor]:
    return {
        int(row): image
        for batch in stream(*arguments, **options)
        for row, image in zip(batch.rows, batch.images, strict=True)
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_equals_the_cache(class_folders, tmp_path, workers):
    image_set = open_dataset(class_folders)
    array = pixels(image_set, 16, cache_dir=tmp_path)
    batches = list(stream(image_set, CentralSquare(16), 5, workers))
    assert [len(batch.images) for batch in batches] == [5, 5, 2]
    assert torch.cat([batch.rows for batch in batches]).tolist() == list(range(12))
    assert torch.equal(torch.cat([batch.images for batch in batches]), array.tensor())
    assert torch.cat([batch.labels for batch in batches]).tolist() == image_set.labels.tolist()


def test_randomness_is_the_pictures_own(class_folders):
    image_set = open_dataset(class_folders)
    alone = gathered(image_set, RandomSquare(16), 4, 0, seed=3)
    shared = {}
    for rank in range(2):
        shared |= gathered(image_set, RandomSquare(16), 3, 1, seed=3, rank=rank, world=2)
    assert alone.keys() == shared.keys() == set(range(12))
    assert all(torch.equal(alone[row], shared[row]) for row in alone)
    later = gathered(image_set, RandomSquare(16), 4, 0, seed=3, epoch=1)
    assert not all(torch.equal(alone[row], later[row]) for row in alone)


def test_shuffled_anew_each_epoch(class_folders):
    image_set = open_dataset(class_folders)
    orders = [
        torch.cat([b.rows for b in stream(image_set, CentralSquare(8), 4, 0, seed=1, epoch=epoch)]).tolist()
        for epoch in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(12))


def test_drop_last_gives_every_rank_as_much(class_folders):
    image_set = open_dataset(class_folders)
    sizes = [
        [len(b.rows) for b in stream(image_set, CentralSquare(8), 5, 0, rank=rank, world=2, drop_last=True)]
        for rank in range(2)
    ]
    assert sizes == [[5], [5]]


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_pictures(class_folders, workers):
    broken = class_folders / "dog" / "2.jpg"
    broken.write_text("no picture")
    image_set = open_dataset(class_folders)
    with pytest.raises(DataError, match=r"dog.2\.jpg: not a picture") as caught:
        list(stream(image_set, CentralSquare(8), 4, workers))
    assert "Traceback" not in str(caught.value)
    batches = list(stream(image_set, CentralSquare(8), 4, workers, skip_broken=True))
    assert sum(len(batch.rows) for batch in batches) == 11
    (dropped,) = [name for batch in batches for name in batch.dropped]
    assert dropped.startswith(str(broken))


def test_random_square_is_a_part_of_the_picture():
    ramp = np.arange(40, dtype=np.uint8)[None, :, None].repeat(30, 0).repeat(3, 2)
    square = RandomSquare(10, area=(0.1, 0.3))
    widths = []
    for seed in range(50):
        out = square(ramp, np.random.default_rng(seed))
        assert out.shape == (10, 10, 3)
        widths.append(int(out[0, -1, 0]) - int(out[0, 0, 0]))
    assert 5 < np.mean(widths) < 22
    assert len(set(widths)) > 5
