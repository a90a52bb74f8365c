"""Decoded pictures are kept, found again by content, and never mixed up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from wdae.data import FileSource, hold_out, open_dataset, pixels
from wdae.data.decode import decode, fit
from wdae.parts import Part


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("pixels-*"))


@pytest.fixture
def many(tmp_path, write) -> Path:
    """Enough pictures for several processes: 5 classes of 40."""
    for number in range(200):
        write(tmp_path / "many" / f"class {number % 5}" / f"{number}.jpg", number, 20 + number % 7, 24)
    return tmp_path / "many"


@pytest.mark.parametrize("workers", [1, 2])
def test_equals_decoding_one_after_another(many, cache, workers):
    image_set = open_dataset(many)
    array = pixels(image_set, 16, cache_dir=cache, workers=workers)
    assert array.data.shape == (200, 16, 16, 3)
    assert array.data.dtype == np.uint8
    for row, path in enumerate(image_set.source.paths):
        assert np.array_equal(array.data[row], fit(decode(path.read_bytes()), 16))
    assert np.array_equal(array.labels, image_set.labels)
    assert array.class_names == image_set.class_names
    assert array.dropped == []
    with pytest.raises(ValueError, match="read-only"):
        array.data[0] = 0


def test_second_start_reads_no_picture(class_folders, cache, monkeypatch):
    image_set = open_dataset(class_folders)
    first = pixels(image_set, 16, cache_dir=cache)
    monkeypatch.setattr(FileSource, "_bytes", None)  # reading any picture would now fail
    assert np.array_equal(pixels(open_dataset(class_folders), 16, cache_dir=cache).data, first.data)


def test_sizes_do_not_share_an_entry(class_folders, cache):
    image_set = open_dataset(class_folders)
    assert pixels(image_set, 16, cache_dir=cache).data.shape[1] == 16
    assert pixels(image_set, 20, cache_dir=cache).data.shape[1] == 20
    assert len(entries(cache)) == 2


def test_a_changed_picture_is_noticed(class_folders, cache, draw, encode):
    pixels(open_dataset(class_folders), 24, cache_dir=cache)
    changed = class_folders / "dog" / "1.jpg"
    before = changed.stat()
    changed.write_bytes(encode(draw(99), "JPEG", quality=30).ljust(before.st_size, b"\0"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p and rsync -t do
    assert changed.stat().st_size == before.st_size
    array = pixels(open_dataset(class_folders), 24, cache_dir=cache)
    assert np.array_equal(array.data[5], decode(changed.read_bytes()))
    assert len(entries(cache)) == 2


def test_a_copy_elsewhere_finds_the_same_entry(class_folders, cache, tmp_path):
    pixels(open_dataset(class_folders), 16, cache_dir=cache)
    shutil.copytree(class_folders, tmp_path / "copy")
    pixels(open_dataset(tmp_path / "copy"), 16, cache_dir=cache)
    assert len(entries(cache)) == 1


def test_another_order_is_another_entry(class_folders, cache):
    image_set = open_dataset(class_folders)
    turned = image_set.select(list(range(len(image_set)))[::-1])
    first, second = (pixels(one, 16, cache_dir=cache) for one in (image_set, turned))
    assert np.array_equal(first.data[::-1], second.data)


def test_held_out_pictures_need_no_new_entry(class_folders, cache):
    image_set = open_dataset(class_folders)
    pixels(image_set, 16, cache_dir=cache)
    array = pixels(hold_out(image_set, 1, seed=0), 16, cache_dir=cache)
    assert len(array.rows(Part.BASE_HELD_OUT)) == 3
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("damage", ["truncate", "no facts", "garbled facts", "garbled index"])
def test_a_damaged_entry_is_built_anew(class_folders, cache, damage):
    image_set = open_dataset(class_folders)
    first = np.array(pixels(image_set, 16, cache_dir=cache).data)
    entry = next(cache.glob("pixels-*"))
    if damage == "truncate":
        os.truncate(entry / "pixels", 1000)
    elif damage == "no facts":
        (entry / "entry.json").unlink()
    elif damage == "garbled facts":
        (entry / "entry.json").write_text("{")
    else:
        next((cache / "index").iterdir()).write_text("[]")
    assert np.array_equal(pixels(image_set, 16, cache_dir=cache).data, first)


def test_cache_folder_from_the_environment(class_folders, tmp_path, monkeypatch):
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "chosen"))
    pixels(open_dataset(class_folders), 16)
    assert len(entries(tmp_path / "chosen")) == 1


def test_tensor_is_channels_last_and_complete(class_folders, cache):
    array = pixels(open_dataset(class_folders), 16, cache_dir=cache)
    tensor = array.tensor()
    assert tensor.shape == (12, 3, 16, 16)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(tensor.permute(0, 2, 3, 1).numpy(), array.data)
    some = array.tensor(rows=np.array([3, 1]))
    assert torch.equal(some, tensor[[3, 1]])


def test_a_script_without_a_main_guard_can_use_several_processes(many, cache):
    script = (
        "from pathlib import Path\nfrom wdae.data import open_dataset, pixels\n"
        f"array = pixels(open_dataset({str(many)!r}), 16, cache_dir=Path({str(cache)!r}), workers=2)\n"
        "print(array.data.shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "(200, 16, 16, 3)"
