"""What other methods get in ``benchmarks/base_novel.py``; their answers, taken up again or made anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.parts import Part
from wdae.synthetic import synthetic_bank

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def base_novel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = pytest.importorskip("base_novel")
    monkeypatch.setattr(module, "BASE_QUERIES", 20)
    return module


def bank(seed: int = 0) -> FeatureBank:
    return synthetic_bank(12, 4, 8, 30, 8, seed=seed, held_out_per_class=10)


def never(shots: Tensor, queries: Tensor) -> Tensor:
    raise AssertionError("measured again")


def test_kept_answers_are_taken_up(base_novel: ModuleType, tmp_path: Path) -> None:
    some, kept = bank(), base_novel.Kept(tmp_path, bank())
    mean = base_novel.Rivals(some).nearest_mean
    plain = base_novel.Draws(some, 2, 3).by("nearest mean", mean, 3)
    first = base_novel.Draws(some, 2, 2).by("nearest mean", mean, 3, kept)
    again = base_novel.Draws(some, 2, 2).by("nearest mean", never, 3, kept)
    more = base_novel.Draws(some, 2, 3).by("nearest mean", mean, 3, kept)
    assert [len(found) for found in (plain, first, again, more)] == [3, 2, 2, 3]
    for found in (first, again, more):
        for one, other in zip(found, plain, strict=False):
            assert one["metrics"] == other["metrics"] and torch.equal(one["flips"], other["flips"])
    rows = base_novel.curves({base_novel.OURS: plain, "nearest mean": more}, 2)
    assert rows[1]["ours_beyond"]["area"]["mean"] == 0 and rows[1]["measured_at"] == [str(more[0]["commit"])]


@pytest.mark.parametrize("what", ["bank", "shots", "method"])
def test_other_facts_are_measured_anew(base_novel: ModuleType, tmp_path: Path, what: str) -> None:
    kept, mean = base_novel.Kept(tmp_path, bank()), base_novel.Rivals(bank()).nearest_mean
    base_novel.Draws(bank(), 2, 1).by("nearest mean", mean, 1, kept)
    if what == "bank":
        kept = base_novel.Kept(tmp_path, bank(1))
    draws = base_novel.Draws(bank(), 3 if what == "shots" else 2, 1)
    with pytest.raises(AssertionError, match="measured again"):
        draws.by("another" if what == "method" else "nearest mean", never, 1, kept)


def test_all_methods_learn_from_the_same_base_images(base_novel: ModuleType) -> None:
    seen, measured = base_novel.with_queries_apart(replace(bank(), base_weights=None))

    def images(some: FeatureBank, *parts: Part) -> set[tuple[float, ...]]:
        return {tuple(row) for part in parts for row in some.select(part).features.tolist()}

    known = images(seen, Part.BASE_TRAIN, Part.BASE_HELD_OUT)
    assert known == images(measured, Part.BASE_TRAIN)
    assert known.isdisjoint(images(measured, Part.BASE_HELD_OUT))


def test_a_bank_with_base_weights_is_measured_as_it_is(base_novel: ModuleType) -> None:
    some = bank()
    assert some.base_weights is not None and base_novel.with_queries_apart(some) == (some, some)
