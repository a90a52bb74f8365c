"""Sets of classes hold the true one as often as is asked for, of base and of added classes."""

from __future__ import annotations

import json

import pytest
import torch

from wdae import Part, synthetic_bank
from wdae.calibration.conformal import thresholds
from wdae.classifier import Model, learn
from wdae.classifier.light.answers import SEPARATOR, csv_heading
from wdae.classifier.predictions import predictions
from wdae.errors import ModelError, RecipeError
from wdae.methods.calibration import Calibration
from wdae.methods.records import RISKS, CalibrationRecord


@pytest.fixture(scope="module")
def base():
    bank = synthetic_bank(24, 8, 8, 60, 16, seed=3, spread=3.0, held_out_per_class=40)
    return bank, learn(bank, method="initial-estimate").base


def covered(model: Model, rows: torch.Tensor, labels: torch.Tensor, coverage: float) -> float:
    return float(model.sets(rows, coverage).gather(1, labels.unsqueeze(1)).double().mean())


@pytest.mark.parametrize("coverage", [0.8, 0.95])
@pytest.mark.parametrize("n_shot", [1, 5])
def test_base_and_added_classes_are_covered_on_images_of_their_own(base, coverage, n_shot):
    bank, knowledge = base
    pool, train = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    found = []
    for first in range(0, 8, 4):
        model = Model(knowledge)
        model.add({f"new {c}": pool.of_class(c)[:n_shot] for c in range(first, first + 4)})
        rows = torch.cat([pool.of_class(c)[n_shot:] for c in range(first, first + 4)])
        labels = bank.n_base + torch.arange(4).repeat_interleave(60 - n_shot)
        found.append(
            [covered(model, rows, labels, coverage), covered(model, train.features, train.labels, coverage)]
        )
    added, old = torch.tensor(found).mean(0).tolist()
    assert abs(old - coverage) < 0.05
    assert coverage - 0.08 < added  # four classes at a time: they differ


def test_thresholds_are_order_statistics():
    chances = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for risk, least in zip(RISKS, thresholds(chances), strict=True):
        left_out = int((chances < least * 0.999).sum())
        assert left_out <= risk * 501
        assert left_out >= risk * 501 - 3
    assert thresholds(torch.tensor([0.3]))[-1] == 0.0  # one picture says nothing of one in a hundred


def test_a_set_is_never_empty_and_grows_with_what_is_asked_for(base):
    bank, knowledge = base
    model = Model(knowledge)
    model.add({"okapi": bank.select(Part.NOVEL).of_class(0)[:2]})
    rows = torch.cat([torch.randn(50, 16), bank.select(Part.NOVEL).features[:50]])
    few, many = model.sets(rows, 0.5), model.sets(rows, 0.99)
    assert few.shape == (100, 25)
    assert bool(few.any(1).all())
    assert bool((many | ~few).all())
    assert few.sum() < many.sum()
    before = model.sets(rows, 0.9)
    model.set_novel_share(0.9)
    assert torch.equal(model.sets(rows, 0.9), before)  # what is expected has no part in them
    assert model.sets(rows, 0.9, only="added").shape == (100, 1)


def test_predictions_show_sets_in_columns_of_their_own(base):
    bank, knowledge = base
    found = predictions(Model(knowledge), bank.features[:20], 2, coverage=0.9)
    assert all(one.likely[0] == one.classes[0] for one in found)
    one = next(one for one in found if len(one.likely) > 1)
    assert one.fields("a.jpg")[-2:] == [str(len(one.likely)), SEPARATOR.join(one.likely)]
    assert json.loads(one.as_json("a.jpg"))["set"] == list(one.likely)
    assert one.as_csv("a").count(",") == csv_heading(2, sets=True).count(",")
    assert predictions(Model(knowledge), bank.features[:1], 2)[0].likely is None


def test_what_cannot_be_covered_is_refused(base):
    _, knowledge = base
    with pytest.raises(RecipeError, match=r"between 0\.5 and 0\.99"):
        Model(knowledge).sets(torch.ones(1, 16), 0.999)
    bare = synthetic_bank(12, 0, 0, 20, 16, seed=0, held_out_per_class=0)
    with pytest.raises(ModelError, match="without held-out"):
        learn(bare, method="initial-estimate").sets(torch.ones(1, 16), 0.9)
    with pytest.raises(ModelError, match="added classes"):
        Calibration(1.0, sets={0: ((0.1,) * len(RISKS),)}).least(0.9, torch.tensor([5]))


def test_sets_are_kept_on_disk(base):
    _, knowledge = base
    own = knowledge.calibration
    record = CalibrationRecord.model_validate_json(json.dumps(own.as_json()))
    assert Calibration.from_json(record.model_dump(mode="json")).sets == own.sets
    assert "sets" not in Calibration(1.0).as_json()


def test_where_there_are_no_validation_classes_base_classes_play_novel():
    bank = synthetic_bank(16, 0, 4, 40, 16, seed=5, held_out_per_class=20)
    model, pool = learn(bank, method="initial-estimate"), bank.select(Part.NOVEL)
    model.add({f"new {c}": pool.of_class(c)[:5] for c in range(4)})
    rows, labels = (
        torch.cat([pool.of_class(c)[5:] for c in range(4)]),
        16 + torch.arange(4).repeat_interleave(35),
    )
    assert covered(model, rows, labels, 0.9) > 0.8
