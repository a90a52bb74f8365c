"""Held-out pictures return into the base weights once everything is found on them."""

from __future__ import annotations

from dataclasses import replace

import torch

from wdae.bank import FeatureBank
from wdae.classifier import LearnConfig, learn
from wdae.classifier.base_weights import learn_weights
from wdae.nn.cosine import unit
from wdae.nn.posterior import likeliest
from wdae.parts import Part
from wdae.synthetic import synthetic_bank

SHORT = {"denoiser.hidden": 8, "training.steps": 2, "evaluation.step_episodes": 10}


def bank(weights: bool = False) -> FeatureBank:
    """Classes of 10 images, 4 of them held out."""
    found = synthetic_bank(14, 0, 0, 10, 12, seed=3, held_out_per_class=4)
    return found if weights else replace(found, base_weights=None, cosine_scale=None)


def class_means(some: FeatureBank) -> torch.Tensor:
    both = [some.select(part) for part in (Part.BASE_TRAIN, Part.BASE_HELD_OUT)]
    return torch.stack([unit(torch.cat([p.of_class(c) for p in both]).mean(0)) for c in range(some.n_base)])


def test_weights_are_of_all_images() -> None:
    model = learn(bank(), LearnConfig(weight_epochs=0), method="initial-estimate")
    torch.testing.assert_close(model.base.weights, class_means(bank()), atol=1e-5, rtol=0)
    assert model.base.counts.tolist() == [10] * 14


def test_the_calibration_is_of_images_that_were_held_out() -> None:
    """As before they return: their accuracy is not that of images that weights were learned from."""
    model = learn(bank(), LearnConfig(weight_epochs=0), method="initial-estimate")
    train, held = bank().select(Part.BASE_TRAIN), bank().select(Part.BASE_HELD_OUT)
    right = (held.features @ train.unit_means(torch.float32).T).argmax(1) == held.labels
    assert model.base.calibration.figures["accuracy_base"] == float(right.double().mean())


def test_a_space_learns_them_too() -> None:
    recipe = {**SHORT, "space.power": 0.5, "space.centre": 0.3, "space.shrink": 0.9, "space.refit_steps": 0}
    model = learn(bank(), recipe=recipe)
    space = model.base.space
    assert space is not None and model.base.graph is not None
    some = bank()
    both = [some.select(part) for part in (Part.BASE_TRAIN, Part.BASE_HELD_OUT)]
    for c in range(14):
        rows = space.features(torch.cat([p.of_class(c) for p in both]))
        torch.testing.assert_close(model.base.weights[c], unit(rows.mean(0)), atol=1e-5, rtol=0)


def test_weights_that_were_given_stay() -> None:
    given = bank(weights=True)
    assert given.base_weights is not None
    model = learn(given, method="initial-estimate")
    torch.testing.assert_close(model.base.weights, unit(given.base_weights))
    assert model.base.counts.tolist() == [6] * 14


def test_few_images_give_the_likeliest_weights() -> None:
    """Between means and logistic regression; they tell the images that they are learned from apart better."""
    some = bank()
    train = some.select(Part.BASE_TRAIN)
    means, _ = learn_weights(train, None, 0, 0)
    weights, scale = learn_weights(train, None, 30, 0)
    wanted = likeliest(train.features, train.labels, 10.0 * means.float())
    torch.testing.assert_close(weights, unit(wanted))
    assert scale > 1

    def right(rows: torch.Tensor) -> float:
        return float(((train.features @ unit(rows.float()).T).argmax(1) == train.labels).double().mean())

    assert right(weights) >= right(means)


def test_weights_are_learned_anew_as_they_were_learned_first() -> None:
    """Some more images than few ones are not learned from in another way than what was calibrated."""
    some = synthetic_bank(21, 0, 0, 50, 32, seed=3, held_out_per_class=10)  # 840 images, then 1,050
    model = learn(replace(some, base_weights=None, cosine_scale=None), method="initial-estimate")
    parts = some.parts.masked_fill(some.parts == Part.BASE_HELD_OUT.code, Part.BASE_TRAIN.code)
    every = replace(some, parts=parts).select(Part.BASE_TRAIN)
    expected = unit(likeliest(unit(every.features.float()), every.labels, 10 * every.unit_means().float()))
    torch.testing.assert_close(model.base.weights, expected, atol=1e-4, rtol=0)
