"""The base–novel curve against a loop that adds offsets one by one and asks again."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from wdae import InitialEstimate, few_way
from wdae.bank import FeatureBank
from wdae.errors import EpisodeError
from wdae.evaluation.curve import Curve, areas, base_novel_curve
from wdae.evaluation.protocol import all_way


def case(Q: int, n_base: int, n: int, seed: int, *, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Scores and labels, with both kinds; ``whole`` numbers tie often."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_base + n, (Q,), generator=source)
    labels[0], labels[1] = 0, n_base
    scores = 2 * torch.randn(Q, n_base + n, generator=source)
    scores.scatter_add_(1, labels.unsqueeze(1), torch.full((Q, 1), 2.0))
    return (scores.round() if whole else scores), labels


def asked_again(scores: Tensor, labels: Tensor, n_base: int, offset: float) -> tuple[float, float]:
    """Base and novel accuracy among all classes, query by query; where the kinds tie, base wins."""
    right: dict[bool, list[bool]] = {False: [], True: []}
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        base, novel = max(row[:n_base]), max(row[n_base:])
        kind = row.index(base) if novel - base <= -offset else n_base + row[n_base:].index(novel)
        right[label >= n_base].append(kind == label)
    return float(np.mean(right[False])), float(np.mean(right[True]))


def between(scores: Tensor, n_base: int) -> list[float]:
    """An offset below, between and above all at which an answer turns."""
    turns = sorted({max(r[:n_base]) - max(r[n_base:]) for r in scores.tolist()})
    inner = [(a + b) / 2 for a, b in itertools.pairwise(turns)]
    return [turns[0] - 1, *inner, turns[-1] + 1]


def slow_area(scores: Tensor, labels: Tensor, n_base: int) -> float:
    points = [asked_again(scores, labels, n_base, t) for t in between(scores, n_base)]
    steps = itertools.pairwise(points)
    return sum((b0 - b1) * (n0 + n1) / 2 for (b0, n0), (b1, n1) in steps)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("n_base", "n"), [(6, 3), (1, 1), (2, 7)])
def test_the_curve_is_what_adding_offsets_gives(n_base: int, n: int, whole: bool) -> None:
    for seed in range(5):
        scores, labels = case(40, n_base, n, seed, whole=whole)
        curve = base_novel_curve(scores, labels, n_base)
        offsets = between(scores.double(), n_base)
        assert len(curve.points) == len(offsets)
        for point, offset in zip(curve.points, offsets, strict=True):
            expected = asked_again(scores, labels, n_base, offset)
            assert (point.base, point.novel) == pytest.approx(expected)
            found = curve.at(offset)
            assert found.offset == offset and (found.base, found.novel) == pytest.approx(expected)
        assert curve.area == pytest.approx(slow_area(scores, labels, n_base))


def test_at_no_offset_the_answers_are_the_highest_scores() -> None:
    scores, labels = case(200, 8, 4, 0)
    right, novel = scores.argmax(1) == labels, labels >= 8
    point = base_novel_curve(scores, labels, 8).at(0)
    assert point.base == pytest.approx(float(right[~novel].double().mean()))
    assert point.novel == pytest.approx(float(right[novel].double().mean()))


def test_ends_are_each_kind_alone_and_the_way_is_monotone() -> None:
    scores, labels = case(200, 8, 4, 1)
    curve, novel = base_novel_curve(scores, labels, 8), labels >= 8
    first, last = curve.points[0], curve.points[-1]
    assert first.offset == -math.inf and first.novel == 0.0 == last.base
    assert first.base == pytest.approx(
        float((scores[~novel, :8].argmax(1) == labels[~novel]).double().mean())
    )
    assert last.novel == pytest.approx(
        float((scores[novel, 8:].argmax(1) + 8 == labels[novel]).double().mean())
    )
    assert bool((curve.base.diff() <= 0).all()) and bool((curve.novel.diff() >= 0).all())
    assert curve.at(-math.inf)[1:] == first[1:] and curve.at(math.inf)[1:] == last[1:]


def test_the_area_of_perfect_and_of_hopeless_scores() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    perfect = torch.eye(4)
    assert base_novel_curve(perfect, labels, 2).area == 1.0
    assert base_novel_curve(perfect.roll(1, 1), labels, 2).area == 0.0
    scores, some = case(60, 5, 3, 2)
    moved = scores.clone()
    moved[:, 5:] += 3.0
    assert base_novel_curve(moved.double(), some, 5).area == pytest.approx(
        base_novel_curve(scores, some, 5).area, abs=1e-6
    ), "a constant on all novel scores is what the area leaves out"


@pytest.mark.parametrize("whole", [False, True])
def test_areas_of_many_episodes_are_those_of_their_curves(whole: bool) -> None:
    flips, right, kinds, expected = [], [], [], []
    for seed in range(12):
        scores, labels = case(50, 6, 4, seed, whole=whole)
        novel = labels >= 6
        own = torch.where(novel, scores[:, 6:].argmax(1) + 6, scores[:, :6].argmax(1)) == labels
        flips.append(scores[:, :6].amax(1) - scores[:, 6:].amax(1))
        right.append(own)
        kinds.append(novel)
        expected.append(slow_area(scores, labels, 6))
    found = areas(torch.stack(flips), torch.stack(right), torch.stack(kinds))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    one = Curve.of(flips[3], right[3], kinds[3])
    assert one.area == pytest.approx(expected[3])


def test_the_point_that_keeps_base_accuracy() -> None:
    scores, labels = case(300, 8, 4, 3)
    curve = base_novel_curve(scores, labels, 8)
    wanted = curve.points[0].base - 0.1
    found = curve.keeping(wanted)
    allowed = [p for p in curve.points if p.base >= wanted]
    assert found.base >= wanted and found.novel == max(p.novel for p in allowed) > 0
    assert curve.at(found.offset)[1:] == found[1:]
    assert curve.at(found.offset + 1e-6).base < wanted
    assert curve.keeping(0.0).novel == curve.points[-1].novel
    with pytest.raises(EpisodeError, match="base accuracy is never 100"):
        curve.keeping(1.0)


def test_a_curve_needs_both_kinds_of_queries() -> None:
    with pytest.raises(EpisodeError, match="got 2 and 0"):
        base_novel_curve(torch.randn(2, 4), [0, 1], 2)


def test_protocols_give_the_area(small_bank: FeatureBank) -> None:
    for result in (
        few_way(InitialEstimate(), small_bank, 1, n_query=6, n_episodes=8),
        all_way(InitialEstimate(), small_bank, 1, n_episodes=3),
    ):
        area, novel, base = (result.per_episode[name] for name in ("area", "novel", "base"))
        inside = result.per_episode["novel_in_all"] * result.per_episode["base_in_all"]
        assert (area <= novel * base + 1e-6).all(), "both accuracies at their highest bound it"
        assert (area >= inside - 1e-6).all(), "any point of the curve is below it"
