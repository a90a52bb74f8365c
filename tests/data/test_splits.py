"""The splits inside the package are the benchmarks' own."""

from __future__ import annotations

import hashlib

import pytest

from wdae.data.splits import BENCHMARKS, load_split
from wdae.errors import DataError
from wdae.parts import Part

# The start of the SHA-256 of the benchmarks' own lists, in their order, a class a line: base, validation,
# novel, then base classes for validation and for the test. tieredImageNet's lines are "class superclass".
DIGESTS = {
    ("mini-imagenet", "names"): ("0f107a65ea80bf1e", "489f8af43b256009", "0db5287e659efd33"),
    ("tiered-imagenet", "names"): ("854207dcb6478464", "cfeeed81b0d9b104", "9568793e7498a73d"),
    ("imagenet-fs", "names"): (
        "6b3a7c3f877a2ab5",
        "310e281413c95f96",
        "04b20c4fd419f14e",
        "0aac5b06c10b7450",
        "9c99d547094b8364",
    ),
    ("imagenet-fs", "positions"): (
        "da25614d4a78f93f",
        "39ec8dc68e088ba1",
        "116d20f2ea1ff278",
        "3a5fb382fbeee9b5",
        "7f5bdf2dd946711b",
    ),
}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mini-imagenet", (64, 16, 20)),
        ("tiered-imagenet", (351, 97, 160)),
        ("imagenet-fs", (389, 300, 311)),
    ],
)
def test_sizes_and_no_class_twice(name, sizes):
    split = load_split(name)
    assert (len(split.base), len(split.validation), len(split.novel)) == sizes
    assert len(set(split.classes)) == sum(sizes)
    assert split.part_of()[split.novel[0]] == Part.NOVEL


@pytest.mark.parametrize(("name", "reading"), DIGESTS)
def test_classes_are_those_of_the_benchmark(name, reading):
    split = load_split(name, reading)
    lists = [split.base, split.validation, split.novel, split.base_validation, split.base_test]
    for classes, digest in zip(lists, DIGESTS[name, reading], strict=False):
        groups = split.superclasses or {}
        lines = [f"{wnid} {groups[wnid]}" if groups else wnid for wnid in classes]
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == digest


def test_tiered_superclasses_are_not_shared_between_kinds():
    split = load_split("tiered-imagenet")
    groups = [
        {split.superclasses[wnid] for wnid in kind} for kind in (split.base, split.validation, split.novel)
    ]
    assert [len(group) for group in groups] == [20, 6, 8]
    assert len(set.union(*groups)) == 34


def test_the_two_readings_differ_but_hold_the_same_thousand():
    names, positions = load_split("imagenet-fs"), load_split("imagenet-fs", "positions")
    assert set(names.classes) == set(positions.classes)
    assert names.base != positions.base


def test_unknown_names_are_refused():
    with pytest.raises(DataError, match="did you mean 'mini-imagenet'"):
        load_split("mini-imagnet")
    with pytest.raises(DataError, match="'names' or by 'positions'"):
        load_split("imagenet-fs", "index")  # type: ignore[arg-type]
    assert len(BENCHMARKS) == 3
