"""Held-out pictures return into the base weights once everything is found on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from wdae.bank import FeatureBank
from wdae.classifier import LearnConfig, learn
from wdae.classifier.base_weights import learn_weights
from wdae.classifier.cost import cost
from wdae.classifier.explain import explain
from wdae.classifier.model import Model
from wdae.classifier.self_test import self_test
from wdae.classifier.store import load, save
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


def hard_bank() -> FeatureBank:
    """Classes that are hard to tell apart, so that pictures known to the weights show."""
    found = synthetic_bank(14, 0, 0, 10, 12, seed=3, held_out_per_class=4, spread=3.0)
    return replace(found, base_weights=None, cosine_scale=None)


def taught() -> tuple[Model, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A model of class means with a class added; means without the held-out pictures, these, their labels."""
    some = hard_bank()
    model = learn(some, LearnConfig(weight_epochs=0), method="initial-estimate")
    held = some.select(Part.BASE_HELD_OUT)
    model.add({"twin": some.select(Part.BASE_TRAIN).of_class(4)[:3]})
    model.set_novel_share(0.5)
    return model, some.select(Part.BASE_TRAIN).unit_means(torch.float32), held.features.float(), held.labels


def test_the_cost_is_told_by_weights_that_have_not_seen_the_pictures(tmp_path: Path) -> None:
    """With the weights that have, accuracy is that of learning by heart."""
    model, means, features, labels = taught()
    scores = model.head.scores(features)
    known = float((scores.argmax(1) == labels).double().mean())
    scores[:, : model.head.n_base] = model.head.gains[0] * unit(features) @ means.T
    right = float((scores.argmax(1) == labels).double().mean())
    before = float((scores[:, : len(means)].argmax(1) == labels).double().mean())
    found = cost(model)
    assert found is not None and right < known - 0.1
    one_picture = 1.01 / len(labels)  # kept at half precision, one may fall on the other side
    assert abs(found.after - right) <= one_picture and abs(found.before - before) <= one_picture
    assert "held-out pictures" in found.as_text()
    save(model, tmp_path / "model")
    assert cost(load(tmp_path / "model")) == found


def test_base_classes_are_tried_out_by_weights_that_have_not_seen_the_pictures() -> None:
    model, means, features, labels = taught()
    right = sum(self_test(model, name).right for name in model.base.names)
    scores = model.head.scores(features)
    scores[:, : model.head.n_base] = model.head.gains[0] * unit(features) @ means.T
    assert abs(right - int((scores.argmax(1) == labels).sum())) <= 1


def test_where_the_weights_of_before_are_not_kept_pictures_are_not_called_held_out() -> None:
    """As in models of before, and of so many classes that a second set of weights is too large."""
    model, *_ = taught()
    assert model.base.held_out is not None
    older = Model(replace(model.base, held_out=replace(model.base.held_out, weights=None)))
    older.add({"twin": model.examples[0].feature[None]})
    for some, seen in ((model, False), (older, True)):
        price, told = cost(some), explain(some, some.names[0]).as_text()
        assert price is not None and price.seen == seen
        for text in (price.as_text(), told):
            assert ("pictures that it has learned from" in text) == seen
            assert ("held-out pictures" in text) != seen
