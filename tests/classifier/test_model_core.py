"""The model in memory: what adding, removing and undoing do, against slow and obvious computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wdae.bank import FeatureBank
from wdae.classifier import BaseKnowledge, LearnConfig, Model, learn
from wdae.errors import ModelError
from wdae.methods.calibration import step_for
from wdae.nn.cosine import unit
from wdae.nn.generate import initial_estimate, refine
from wdae.parts import Part

QUICK = {
    "denoiser.hidden": 16,
    "training.steps": 10,
    "training.validation_episodes": 20,
    "evaluation.step_episodes": 40,
    "space.choice_episodes": 20,
    "device": "cpu",
}

PLAIN = {"space.power": 1.0, "space.centre": 0.0, "space.shrink": 1.0, "space.refit_steps": 0}
"""Features as they are, base weights as the bank has them."""


@pytest.fixture
def learned(base: BaseKnowledge) -> Model:
    return Model(base)


def fresh(model: Model) -> Model:
    return Model(model.base)


def novel(bank: FeatureBank, classes: int = 8, shots: int = 3) -> dict[str, torch.Tensor]:
    pool = bank.select(Part.NOVEL)
    return {f"new {i}": pool.of_class(i)[:shots] for i in range(classes)}


def test_weights_equal_the_plain_computation(small_bank: FeatureBank) -> None:
    model = learn(small_bank, recipe=QUICK | PLAIN | {"evaluation.anchors": 0})
    base = model.base
    assert base.denoiser is not None
    pool = small_bank.select(Part.NOVEL)
    shots = (1, 4, 2)
    model.add({f"new {i}": pool.of_class(i)[:k] for i, k in enumerate(shots)})
    for i, k in enumerate(shots):
        # A class alone: the mean of its shots, then one step of refinement beside all other classes.
        support = torch.zeros(1, 3, 4, small_bank.dim)
        mask = torch.zeros(1, 3, 4, dtype=torch.bool)
        for j, n in enumerate(shots):
            support[0, j, :n], mask[0, j, :n] = pool.of_class(j)[:n], True
        initial = initial_estimate(base.weights, support, mask)
        step = step_for(k, base.denoiser.steps)
        wanted = unit(refine(base.denoiser.denoiser.eval(), initial, step)[0, 24 + i])
        torch.testing.assert_close(model.head.weights[24 + i], wanted, rtol=1e-4, atol=1e-5)


def test_scores_are_calibrated_cosines(small_bank: FeatureBank) -> None:
    model = learn(small_bank, recipe=QUICK | {"evaluation.anchors": 0})
    model.add(novel(small_bank))
    queries = small_bank.select(Part.NOVEL).features[::7] * 3.0
    calibration = model.base.calibration
    got = model.scores(queries, expect=0.5)
    for row, query in enumerate(queries):
        for c, weight in enumerate(model.head.weights):
            inside = model.base.in_space(query[None])[0]
            cosine = float(inside @ weight / weight.norm())
            slope = step_for(3, calibration.slopes) if c >= 24 else 1.0
            # Half of the pictures are expected in 8 new classes, the other half in 24 base classes.
            offset = step_for(3, calibration.offsets) + math.log(24 / 8) if c >= 24 else 0.0
            assert got[row, c] == pytest.approx(calibration.gain * slope * cosine + offset, abs=1e-3)


def test_base_classes_stay_as_learned(small_bank: FeatureBank, learned: Model) -> None:
    model = fresh(learned)
    before = model.scores(small_bank.select(Part.BASE_HELD_OUT).features)
    model.add(novel(small_bank))
    after = model.scores(small_bank.select(Part.BASE_HELD_OUT).features)
    torch.testing.assert_close(after[:, :24], before)


def test_refined_base_weights_equal_the_plain_computation(small_bank: FeatureBank) -> None:
    model = learn(small_bank, LearnConfig(refine_base=True), recipe=QUICK | PLAIN)
    base = model.base
    assert base.denoiser is not None
    base.denoiser.steps = {1: 0.6}
    model.add({f"new {i}": rows[:1] for i, rows in enumerate(novel(small_bank).values())})
    support = torch.stack([rows[:1] for rows in novel(small_bank).values()])[None]
    wanted = unit(refine(base.denoiser.denoiser.eval(), initial_estimate(base.weights, support), 0.6)[0])
    torch.testing.assert_close(model.head.weights, wanted, rtol=1e-4, atol=1e-5)


def test_order_of_adding_does_not_matter(small_bank: FeatureBank, learned: Model) -> None:
    classes = novel(small_bank)
    queries = small_bank.select(Part.NOVEL).features
    together, apart = fresh(learned), fresh(learned)
    together.add(classes)
    for name in reversed(list(classes)):
        for row in classes[name].flip(0):
            apart.add({name: row[None]}, update=True)
    there = {name: i for i, name in enumerate(apart.names)}
    order = [there[name] for name in together.names]
    assert torch.equal(together.scores(queries), apart.scores(queries)[:, order])


def test_adding_never_renumbers(small_bank: FeatureBank, learned: Model) -> None:
    model = fresh(learned)
    model.add({"zebra": novel(small_bank)["new 0"]})
    model.add({"ant": novel(small_bank)["new 1"]})
    assert model.names[:24] == learned.base.names
    assert model.names[24:] == ("zebra", "ant")


def test_undo_goes_back_step_by_step_and_any_state_can_be_restored(
    small_bank: FeatureBank, learned: Model
) -> None:
    model, queries = fresh(learned), small_bank.select(Part.NOVEL).features
    states = [model.scores(queries)]
    classes = novel(small_bank)
    for name in ("new 0", "new 1"):
        model.add({name: classes[name]})
        states.append(model.scores(queries))
    model.remove(["new 0"])
    states.append(model.scores(queries))
    for number in (2, 1, 0):
        model.undo()
        assert torch.equal(model.scores(queries), states[number])
    with pytest.raises(ModelError, match="nothing to undo"):
        model.undo()
    model.add({"other": classes["new 5"]})
    for number in (3, 1, 2, 0):
        model.restore(number)
        assert torch.equal(model.scores(queries), states[number])
    assert [change.parent for change in model.history.changes] == [0, 1, 2, 0]


def test_more_examples_of_a_base_class_move_its_weight_as_more_images_would(
    small_bank: FeatureBank, learned: Model
) -> None:
    model, name = fresh(learned), learned.base.names[2]
    extra = small_bank.select(Part.NOVEL).of_class(0)[:5]
    model.add({name: extra}, update=True)
    n = int(learned.base.counts[2])
    assert n == 20
    wanted = unit(n * learned.base.weights[2] + learned.base.in_space(extra).sum(0))
    torch.testing.assert_close(model.head.weights[2], wanted)
    others = [i for i in range(24) if i != 2]
    assert torch.equal(model.head.weights[others], learned.base.weights[others])
    assert model.added == ()


def test_without_enough_classes_there_is_no_denoiser_and_it_is_said(small_bank: FeatureBank) -> None:
    train = small_bank.select(Part.BASE_TRAIN)
    rows = torch.cat([train.of_class(c) for c in range(3)])
    labels = torch.arange(3).repeat_interleave(20)
    model = learn(FeatureBank.build(rows, labels, ["a", "b", "c"], Part.BASE_TRAIN))
    assert model.base.denoiser is None
    assert "3 base classes" in model.base.info["denoiser"]
    model.add({"d": train.of_class(5)[:2]})
    torch.testing.assert_close(model.head.weights[3], unit(train.of_class(5)[:2].mean(0)))


def test_learning_is_deterministic(small_bank: FeatureBank, learned: Model) -> None:
    again = learn(small_bank, recipe=QUICK)
    assert again.base.calibration == learned.base.calibration
    assert again.base.denoiser is not None and learned.base.denoiser is not None
    for a, b in zip(
        again.base.denoiser.denoiser.parameters(), learned.base.denoiser.denoiser.parameters(), strict=True
    ):
        assert torch.equal(a, b)


def test_novel_classes_of_the_bank_are_never_looked_at(small_bank: FeatureBank, learned: Model) -> None:
    rows = (small_bank.parts != Part.NOVEL.code).nonzero()[:, 0]
    labels = small_bank.labels[rows]
    values, numbered = labels.unique(return_inverse=True)
    without = FeatureBank.build(
        small_bank.features[rows],
        numbered,
        [small_bank.class_names[v] for v in values.tolist()],
        small_bank.parts[rows],
        base_weights=small_bank.base_weights,
        cosine_scale=small_bank.cosine_scale,
    )
    assert learn(without, recipe=QUICK).base.calibration == learned.base.calibration


def test_base_weights_are_learned_where_there_are_none() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 12))
    rows = np.concatenate([c + 0.8 * rng.normal(size=(30, 12)) for c in centres])
    labels = np.repeat(np.arange(6), 30)
    bank = FeatureBank.build(rows, labels, list("abcdef"), Part.BASE_TRAIN)
    model = learn(bank, recipe=QUICK)
    means = unit(torch.stack([unit(torch.from_numpy(rows[labels == c]).float()).mean(0) for c in range(6)]))
    right = [
        float(
            (unit(torch.from_numpy(rows).float()) @ w.T).argmax(1).eq(torch.from_numpy(labels)).float().mean()
        )
        for w in (model.base.weights, means)
    ]
    assert right[0] >= right[1]
