"""Sets of pictures: their checks, selections and held-out pictures."""

from __future__ import annotations

import os
import pickle
import tracemalloc

import numpy as np
import pytest

from wdae.data import ArraySource, ImageSet, hold_out
from wdae.data.source import FileNames
from wdae.errors import DataError
from wdae.parts import Part


def make(labels, parts=None, names=None, **options) -> ImageSet:
    count = len(labels)
    arrays = np.arange(count, dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    where = np.stack([np.zeros(count, np.int64), np.arange(count)], 1)
    return ImageSet(
        "made",
        ArraySource((arrays,), where, ("nowhere",)),
        np.array(labels, dtype=np.int64),
        np.array([0] * count if parts is None else parts, dtype=np.uint8),
        tuple(names or [f"class {i}" for i in range(max(labels, default=0) + 1)]),
        **options,
    )


def test_rows_counts_and_classes():
    made = make([0, 0, 1, 2, 2, 0], [0, 1, 2, 3, 3, 0])
    assert made.rows(Part.BASE_TRAIN).tolist() == [0, 5]
    assert made.counts(Part.BASE_TRAIN).tolist() == [2, 0, 0]
    assert made.counts(Part.BASE_HELD_OUT).tolist() == [1, 0, 0]
    assert made.classes_of(Part.NOVEL) == [2]


def test_select_keeps_everything_together():
    made = make([0, 0, 1, 1], query_only=np.array([False, True, False, True]))
    some = made.select([3, 0])
    assert some.labels.tolist() == [1, 0]
    assert some.query_only.tolist() == [True, False]
    assert [int(some.read(i)[0, 0, 0]) for i in range(2)] == [3, 0]
    assert some.class_names == made.class_names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": []}, "no pictures"),
        ({"labels": [0, 5], "names": ["a", "b"]}, "labels must lie in 0 … 1"),
        ({"labels": [0, 1], "names": ["a", "a"]}, "names must differ; repeated: a"),
        ({"labels": [0, 0], "parts": [0, 3]}, r"'class 0' \(base and novel\)"),
        ({"labels": [0, 0], "parts": [0, 9]}, "parts must lie in 0 … 3"),
        ({"labels": [0, 0], "parts": [0]}, "2 pictures, but labels and parts for"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        make(**arguments)


def test_base_classes_may_have_held_out_pictures():
    assert make([0, 0], [0, 1]).classes_of(Part.BASE_HELD_OUT) == [0]


def test_hold_out_moves_so_many_of_each_base_class_and_nothing_else():
    labels = np.random.default_rng(0).integers(0, 5, 300)
    parts = np.where(labels == 4, Part.NOVEL.code, np.where(labels == 3, Part.VALIDATION.code, 0))
    made = make(labels.tolist(), parts.tolist())
    held = hold_out(made, 7, seed=1)
    assert held.counts(Part.BASE_HELD_OUT).tolist() == [7, 7, 7, 0, 0]
    changed = held.parts != made.parts
    assert changed.sum() == 21
    assert (held.parts[changed] == Part.BASE_HELD_OUT.code).all()
    assert (made.parts == parts).all(), "the set given must stay as it was"
    assert np.array_equal(held.parts, hold_out(made, 7, seed=1).parts)
    assert not np.array_equal(held.parts, hold_out(made, 7, seed=2).parts)
    assert np.array_equal(hold_out(made, 0, seed=1).parts, made.parts)


def test_hold_out_is_uniform():
    made = make([0] * 10)
    times = sum((hold_out(made, 3, seed).parts == 1).astype(int) for seed in range(2000))
    assert np.abs(times / 600 - 1).max() < 0.15


def test_hold_out_keeps_one_to_learn_from():
    with pytest.raises(DataError, match=r"'class 1' has 2; hold out fewer \(--held-out"):
        hold_out(make([0, 0, 0, 1, 1]), 2, seed=0)
    with pytest.raises(DataError, match="0 or more"):
        hold_out(make([0]), -1, seed=0)


def test_names_of_files_come_back_as_they_were():
    odd = ["a.jpg", "", "häuser/日本.png", os.fsdecode(b"caf\xe9.jpg"), "x" * 300]
    names = FileNames(iter(odd))
    assert list(names) == odd and names[-1] == odd[-1] and list(names[1:4:2]) == odd[1:4:2]
    assert list(pickle.loads(pickle.dumps(names))) == odd and list(FileNames(())) == []
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            names[wrong]


def test_names_of_files_take_little_more_than_their_letters():
    tracemalloc.start()
    try:
        names = FileNames(f"photos/class {i % 100}/{i:09d}.jpg" for i in range(20_000))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20_000 * (len(names[-1]) + 8) * 1.05


def test_held_out_of_each_class_its_own_number():
    made = make([0] * 12 + [1] + [2] * 5)
    held = hold_out(made, np.array([3, 0, 1]), seed=1)
    assert held.counts(Part.BASE_HELD_OUT).tolist() == [3, 0, 1]
    assert held.counts(Part.BASE_TRAIN).tolist() == [9, 1, 4]
    with pytest.raises(DataError, match="'class 1' has 1"):
        hold_out(made, np.array([3, 1, 1]), seed=1)
