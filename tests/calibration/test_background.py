"""The classes that a backbone was trained on tell what is none of a model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from wdae import FeatureBank, Part, synthetic_bank
from wdae.calibration.background import SHARPNESS, Background, explained, sharpened
from wdae.calibration.familiarity import UNSURE
from wdae.calibration.unknown import RATE, SHARPENED_FROM, Detector
from wdae.classifier import Model, load, save
from wdae.classifier.learning import learn_from_bank
from wdae.classifier.light.folder import ModelFolder
from wdae.classifier.predictions import predictions
from wdae.classifier.store import computed_answers

DIM, N_BASE = 24, 24


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return synthetic_bank(N_BASE, 10, 10, 40, DIM, seed=4, held_out_per_class=20)


@pytest.fixture(scope="module")
def own(bank: FeatureBank) -> tuple[torch.Tensor, torch.Tensor]:
    """A classifier of all classes, as a network has one that was trained on more than the model's."""
    parts = (Part.BASE_TRAIN, Part.VALIDATION, Part.NOVEL)
    means = torch.cat([bank.select(part).unit_means(torch.float32) for part in parts])
    return 12 * means / bank.mean_length(), torch.zeros(len(means))


@pytest.fixture(scope="module")
def model(bank: FeatureBank, own: tuple[torch.Tensor, torch.Tensor]) -> Model:
    return learn_from_bank(bank, method="initial-estimate", background=own)


def test_what_is_explained_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    chances, profiles = (torch.rand(k, 7, generator=generator).softmax(1) for k in (4, 3))
    found = explained(chances, profiles)
    for i, picture in enumerate(chances.tolist()):
        for c, profile in enumerate(profiles.tolist()):
            share = sum(p * m / (m + UNSURE) for p, m in zip(picture, profile, strict=True))
            assert float(found[i, c]) == pytest.approx(np.log(share / (1 - share)), abs=1e-5)


def test_sharpened_profiles_against_a_loop() -> None:
    means = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)).softmax(1)
    chances = torch.eye(7)
    found = explained(chances, sharpened(means, 3.0)).sigmoid()
    for c, row in enumerate(means.tolist()):
        for b, mean in enumerate(row):
            share = (mean / max(row)) ** 3
            wanted = share if share < 1 else 1 / (1 + UNSURE)
            assert float(found[b, c]) == pytest.approx(min(wanted, 1 / (1 + UNSURE)), abs=0.01)
    assert sharpened(means, 0.0) is means  # as in files of before


def test_shifted_features_are_brought_back_by_their_means() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(5, 8, generator=generator), torch.randn(5, generator=generator)
    features = torch.rand(200, 8, generator=generator)
    factors = 0.5 + torch.rand(8, generator=generator)
    shifted = features * factors
    length = float(shifted.norm(dim=1).mean())
    seen = shifted / length
    args = (weight, bias, length)
    wanted = (features @ weight.T + bias).softmax(1)

    def error(one: Background) -> float:
        found = torch.addmm(one.bias, seen, one.weight.T).softmax(1)
        return float((found - wanted).abs().mean())

    assert error(Background.of_linear(*args, features.mean(0), seen.mean(0))) < 1e-3
    assert error(Background.of_linear(*args)) > 0.01
    dead = torch.zeros(8)
    assert torch.equal(
        Background.of_linear(*args, dead, seen.mean(0)).weight, Background.of_linear(*args).weight
    )


def test_more_is_caught_at_as_many_false_alarms(bank: FeatureBank, model: Model) -> None:
    without = learn_from_bank(bank, method="initial-estimate")
    held_out, pool = bank.select(Part.BASE_HELD_OUT), bank.select(Part.NOVEL)
    unseen = torch.cat([pool.of_class(c) for c in range(5, 10)])
    caught = {}
    for name, base in (("with", model.base), ("without", without.base)):
        one = Model(base)
        one.add({f"new {c}": pool.of_class(c)[:5] for c in range(5)})
        known = torch.cat([pool.of_class(c)[5:] for c in range(5)])
        rates = [
            float(np.mean([p.unknown for p in predictions(one, rows, 1, RATE)]))
            for rows in (held_out.features, known, unseen)
        ]
        assert rates[0] < 0.1 and rates[1] < 0.2  # ten pseudo-novel classes tell little of others
        caught[name] = rates[2]
    assert caught["with"] > caught["without"] + 0.1
    assert model.base.calibration.figures["caught"] > without.base.calibration.figures["caught"]
    assert model.base.calibration.figures["strays_5"] > without.base.calibration.figures["strays_5"]


def test_files_and_numpy_say_the_same(bank: FeatureBank, model: Model, tmp_path: Path) -> None:
    pool = bank.select(Part.NOVEL)
    one = Model(model.base)
    one.add({f"new {c}": pool.of_class(c)[:3] for c in range(3)})
    save(one, tmp_path / "model")
    rows = torch.cat([pool.features, bank.select(Part.BASE_HELD_OUT).features])
    for only in (None, "added", "base"):
        wanted = [p.unknown for p in predictions(one, rows, 1, 0.2, only=only)]
        again = [p.unknown for p in predictions(load(tmp_path / "model"), rows, 1, 0.2, only=only)]
        folder = ModelFolder.open(tmp_path / "model")
        answers = computed_answers(folder).asked(only=None if only is None else folder.chosen(only))
        light = [p.unknown for p in answers.predictions(rows.numpy(), 1, 0.2)]
        assert np.mean(np.array(wanted) != np.array(again)) < 0.01  # half precision
        assert np.mean(np.array(again) != np.array(light)) < 0.01


@pytest.mark.parametrize("name", ["background", "background_bias", "profiles"])
def test_forged_backgrounds_are_refused(model: Model, name: str) -> None:
    detector = model.base.detector
    assert detector is not None and detector.background is not None
    kept = detector.tensors()
    again = Detector.of_tensors(kept, N_BASE, DIM)
    assert again.strength == pytest.approx(detector.strength, rel=1e-5) and again.sharpness == SHARPNESS
    before = {key: value for key, value in kept.items() if key != "sharpness"}
    assert Detector.of_tensors(before, N_BASE, DIM).sharpness == 0  # files of before
    before = {key: value for key, value in kept.items() if key != "sharpened_from"}
    assert Detector.of_tensors(before, N_BASE, DIM).sharpened_from == 1
    assert again.sharpened_from == SHARPENED_FROM
    with pytest.raises(ValueError, match="no example"):
        Detector.of_tensors(kept | {"sharpened_from": torch.tensor(0)}, N_BASE, DIM)
    with pytest.raises(ValueError, match="sharpened"):
        Detector.of_tensors(kept | {"sharpness": torch.tensor(-1.0)}, N_BASE, DIM)
    with pytest.raises(ValueError, match="detector"):
        Detector.of_tensors(kept | {name: kept[name][:-1]}, N_BASE, DIM)
    with pytest.raises(ValueError, match="detector"):
        Detector.of_tensors(kept | {name: kept[name] * torch.nan}, N_BASE, DIM)
    with pytest.raises(ValueError, match="counts"):
        Detector.of_tensors(kept | {"strength": torch.tensor(-1.0)}, N_BASE, DIM)


def test_second_guesses_count_in_classes_of_one_and_two_examples(bank: FeatureBank, model: Model) -> None:
    detector = model.base.detector
    assert detector is not None and detector.background is not None
    rows = bank.select(Part.NOVEL).of_class(0)[:5]
    chances = detector.background.chances(rows)
    few = detector.added([rows[:1], rows[:2]]).profiles
    torch.testing.assert_close(few, torch.stack([chances[0], chances[:2].mean(0)]))
    several = detector.added([rows]).profiles[0]
    torch.testing.assert_close(several, sharpened(chances.mean(0), SHARPNESS))
    old = replace(detector, sharpened_from=1)  # as files of before have it
    torch.testing.assert_close(old.added([rows[:1]]).profiles[0], sharpened(chances[0], SHARPNESS))


def test_limits_of_agreement_as_it_was_measured_before_are_left_out(model: Model) -> None:
    assert model.base.detector is not None
    kept = model.base.detector.tensors()
    assert Detector.of_tensors(kept, N_BASE, DIM).strays.keys() == model.base.detector.strays.keys()
    kept["strays"] = kept.pop("strays_alike")
    assert Detector.of_tensors(kept, N_BASE, DIM).stray(5) == -torch.inf


def test_classifiers_of_longer_features_are_brought_to_unit_length() -> None:
    weight, bias = torch.randn(5, 8), torch.randn(5)
    features = 3 * torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
    found = Background.of_linear(weight, bias, length=3.0).chances(features)
    torch.testing.assert_close(found, (features @ weight.T + bias).softmax(1), atol=5e-3, rtol=0)
