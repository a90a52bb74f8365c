"""The splits inside the package are the benchmarks' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wdae.data.splits import BENCHMARKS, load_split
from wdae.errors import DataError
from wdae.parts import Part

FACTS = Path(__file__).parents[3] / "shared" / "data" / "splits"
needs_facts = pytest.mark.skipif(not FACTS.is_dir(), reason="the benchmarks' split files are not here")


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


@needs_facts
def test_mini_imagenet():
    facts = json.loads((FACTS / "mini-imagenet.json").read_text())
    split = load_split("mini-imagenet")
    assert [list(split.base), list(split.validation), list(split.novel)] == [
        facts[key] for key in ("base", "val", "novel")
    ]


@needs_facts
def test_tiered_imagenet_with_superclasses():
    facts = json.loads((FACTS / "tiered-imagenet.json").read_text())
    split = load_split("tiered-imagenet")
    for classes, key in ((split.base, "base"), (split.validation, "val"), (split.novel, "novel")):
        assert [{"wnid": wnid, "superclass": split.superclasses[wnid]} for wnid in classes] == facts[key]


def test_tiered_superclasses_are_not_shared_between_kinds():
    split = load_split("tiered-imagenet")
    groups = [
        {split.superclasses[wnid] for wnid in kind} for kind in (split.base, split.validation, split.novel)
    ]
    assert [len(group) for group in groups] == [20, 6, 8]
    assert len(set.union(*groups)) == 34


@needs_facts
@pytest.mark.parametrize(
    ("reading", "key"), [("names", "by_label_name"), ("positions", "by_alphabetical_index")]
)
def test_imagenet_fs_in_both_readings(reading, key):
    facts = json.loads((FACTS / "imagenet-fs.json").read_text())[key]
    split = load_split("imagenet-fs", reading)
    assert list(split.base) == facts["base"]
    assert list(split.base_validation) == facts["base_val"]
    assert list(split.base_test) == facts["base_test"]
    assert list(split.validation) == facts["novel_val"]
    assert list(split.novel) == facts["novel_test"]


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
