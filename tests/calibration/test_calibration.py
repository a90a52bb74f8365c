"""Calibration: each piece against a slow, obvious computation or a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from wdae.calibration.balance import fit_balance, fit_offset
from wdae.calibration.probabilities import (
    area_under_roc,
    binned_error,
    calibration_error,
    fit_gain,
    quantiles,
)
from wdae.calibration.pseudo_novel import QueryScores
from wdae.errors import RecipeError
from wdae.methods.calibration import Calibration, interpolate


def test_error_by_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    chances = (3 * torch.randn(500, 6, generator=generator)).softmax(1)
    labels = torch.randint(6, (500,), generator=generator)
    wanted = 0.0
    for b in range(15):
        inside = [i for i in range(500) if min(14, int(float(chances[i].max()) * 15)) == b]
        if inside:
            confidence = np.mean([float(chances[i].max()) for i in inside])
            right = np.mean([float(chances[i].argmax() == labels[i]) for i in inside])
            wanted += len(inside) / 500 * abs(confidence - right)
    assert calibration_error(chances, labels) == pytest.approx(wanted, abs=1e-6)


def test_area_under_roc_as_scikit_learn_has_it() -> None:
    rng = np.random.default_rng(0)
    known, unknown = rng.integers(0, 9, 60) / 3.0, rng.integers(0, 9, 45) / 3.0 - 0.5
    wanted = roc_auc_score([1] * 60 + [0] * 45, np.concatenate([known, unknown]))
    assert area_under_roc(torch.tensor(known), torch.tensor(unknown)) == pytest.approx(wanted)


def test_the_gain_that_made_the_labels_is_found() -> None:
    generator = torch.Generator().manual_seed(1)
    cosines = torch.rand(20_000, 8, generator=generator) * 2 - 1
    labels = torch.multinomial((4.0 * cosines).softmax(1), 1, generator=generator)[:, 0]
    assert fit_gain(cosines, labels, start=20.0) == pytest.approx(4.0, rel=0.05)


def test_the_offset_that_made_the_labels_is_found() -> None:
    generator = torch.Generator().manual_seed(2)
    base, novel = torch.randn(40_000, 10, generator=generator), torch.randn(40_000, 4, generator=generator)
    chances = torch.cat([base, 0.8 * novel + 1.3], 1).softmax(1)
    labels = torch.multinomial(chances, 1, generator=generator)[:, 0]
    offset = fit_offset(QueryScores.of(base, novel, labels), 0.8)
    # Queries of both kinds count half, whatever their number, and the offset is that of equally likely
    # classes: that shifts it by log odds.
    share = float((labels >= 10).double().mean())
    assert offset == pytest.approx(1.3 + math.log((1 - share) / share) - math.log(10 / 4), abs=0.08)


def test_statistics_say_what_the_whole_scores_say() -> None:
    generator = torch.Generator().manual_seed(3)
    base, novel = torch.randn(60, 7, generator=generator), torch.randn(60, 3, generator=generator)
    labels = torch.randint(10, (60,), generator=generator)
    whole = torch.cat([base, 0.8 * novel + 0.4 + math.log(7 / 3)], 1)
    scores = QueryScores.of(base, novel, labels)
    wider = QueryScores.of(base[:9], torch.randn(9, 5, generator=generator), labels[:9])
    for some in (scores, QueryScores.joined([scores, wider])):
        confidence, right = some.confidence(0.8, 0.4)[:60], some.right(0.8, 0.4)[:60]
        assert torch.equal(right, whole.argmax(1) == labels)
        lost = torch.nn.functional.cross_entropy(whole, labels, reduction="none")
        both = 0.5 * (lost[labels >= 7].mean() + lost[labels < 7].mean())
        if some is scores:
            assert float(some.loss(0.8, 0.4)) == pytest.approx(float(both), rel=1e-5)
        found = binned_error(confidence, right)
        assert found == pytest.approx(calibration_error(whole.softmax(1), labels), abs=1e-6)


def test_queries_that_are_all_recognised_leave_the_balance_finite() -> None:
    base, novel = torch.full((40, 3), 2.0), torch.full((40, 2), 2.0)
    base[:20, 1], novel[20:, 0] = 20.0, 20.0
    labels = torch.tensor([1] * 20 + [3] * 20)
    slope, offset = fit_balance(QueryScores.of(base, novel, labels))
    assert 0.3 < slope < 3 and abs(offset) < 5


def test_one_kind_of_query_leaves_the_offset_alone() -> None:
    scores = QueryScores.of(torch.randn(5, 3), torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1]))
    assert fit_offset(scores) == 0.0


def test_quantiles_and_thresholds() -> None:
    values = torch.linspace(10, 20, 1001)
    calibration = Calibration(1.0, familiarity=quantiles(values))
    assert calibration.threshold(0.05) == pytest.approx(10.5, abs=1e-3)
    assert calibration.threshold(0) == -math.inf and calibration.threshold(1) == 20
    assert Calibration(1.0).threshold(0.5) == -math.inf
    assert interpolate((3.0,), 0.7) == 3.0
    with pytest.raises(RecipeError, match="between 0 and 1"):
        calibration.threshold(1.5)


def test_the_prior_of_added_classes() -> None:
    calibration = Calibration(1.0, {1: 1.0}, {1: 0.0})
    # Half of all pictures in 20 added classes against half in 64 base classes.
    many, one = (calibration.prior(64, torch.ones(n))[0].item() for n in (20, 1))
    assert many == pytest.approx(math.log((0.5 / 20) / (0.5 / 64)))
    # A single class is expected in a tenth of the pictures, not in half of them.
    assert one == pytest.approx(math.log(0.1 / (0.9 / 64)))
    assert Calibration(1.0).prior(64, torch.ones(20)).abs().max() == 0.0


def test_slopes_and_offsets_between_numbers_of_shots() -> None:
    calibration = Calibration(2.0, {1: 0.5, 4: 1.5}, {1: 1.0, 4: -1.0})
    slopes, offsets = calibration.of_shots(torch.tensor([1, 2, 4, 50]))
    assert slopes.tolist() == [0.5, 1.0, 1.5, 1.5]
    assert offsets.tolist() == [1.0, 0.0, -1.0, -1.0]
    assert Calibration.from_json(calibration.as_json()) == calibration
