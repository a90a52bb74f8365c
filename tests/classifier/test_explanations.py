"""What explain says, against the definitions."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.classifier import BaseKnowledge, Model
from wdae.classifier.explain import explain, warnings_about
from wdae.classifier.self_test import CONFUSED, SelfTest, expected, self_test
from wdae.nn.graph import build_graph
from wdae.parts import Part

Newcomers = dict[str, torch.Tensor]


def test_neighbours_are_those_of_the_class_graph(base: BaseKnowledge, newcomers: Newcomers) -> None:
    model = Model(base)
    model.add({name: newcomers[name][:3] for name in ("new 2", "new 0", "new 1")})
    means = [base.in_space(newcomers[name][:3]).mean(0) for name in model.added]
    graph = build_graph(torch.cat([base.weights, torch.stack(means)]))
    for name in (base.names[4], "new 0"):
        place = model.names.index(name)
        found = explain(model, name)
        wanted = [model.names[i] for i in graph.neighbours[place].tolist()]
        assert [n.name for n in found.neighbours] == wanted
        strengths = torch.tensor([n.strength for n in found.neighbours])
        torch.testing.assert_close(strengths, graph.strengths[place], rtol=1e-4, atol=1e-5)


def test_how_far_the_weight_moved(base: BaseKnowledge, newcomers: Newcomers) -> None:
    assert base.denoiser is not None
    before = dict(base.denoiser.steps)
    base.denoiser.steps = {1: 0.7}
    try:
        model = Model(base)
        model.add({"okapi": newcomers["new 0"][:1]})
        found = explain(model, "okapi")
    finally:
        base.denoiser.steps = before
    cosine = float(base.in_space(newcomers["new 0"][0]) @ model.head.weights[-1])
    assert found.step == pytest.approx(0.7)
    assert found.moved == pytest.approx(math.degrees(math.acos(cosine)), abs=0.1) and found.moved > 0.5
    assert explain(model, base.names[0]).moved is None
    assert "listens to" in found.as_text()


def test_an_example_of_another_class_is_out_of_place(base: BaseKnowledge, newcomers: Newcomers) -> None:
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(base.dim, generator=generator)
    rows = centre + 0.2 * torch.randn(5, base.dim, generator=generator)
    rows[3] = torch.randn(base.dim, generator=generator)
    model = Model(base)
    model.add({"okapi": rows})
    found = explain(model, "okapi")
    assert [e.out_of_place for e in found.examples] == [False, False, False, True, False]
    assert any("example 3 of 'okapi' looks out of place" in line for line in found.warnings)
    assert "OUT OF PLACE" in found.as_text()


def test_a_class_that_is_there_already_is_warned_of(
    base: BaseKnowledge, newcomers: Newcomers, small_bank: FeatureBank
) -> None:
    model = Model(base)
    model.add({"again": small_bank.select(Part.BASE_HELD_OUT).of_class(3)[:5]})
    found = explain(model, "again")
    assert any(f"nearly coincides with {base.names[3]!r}" in line for line in found.warnings)
    assert found.trial.confusions[0].name == base.names[3] and found.trial.confusions[0].share >= CONFUSED
    model.add({"other": newcomers["new 1"][:5], "twin": newcomers["new 1"][5:10]})
    assert explain(model, "twin").confusable[0].name == "other"
    assert any("nearly coincides with 'other'" in line for line in warnings_about(model, "twin"))
    assert not any("nearly" in line for line in warnings_about(model, "twin", try_out=False))


@pytest.mark.parametrize("share", [None, 0.01])
def test_a_class_that_is_there_already_is_noticed_where_nothing_is_held_out(
    base: BaseKnowledge, newcomers: Newcomers, small_bank: FeatureBank, share: float | None
) -> None:
    """The fewer new pictures are expected, the more examples are taken for the class that was there."""
    model = Model(replace(base, held_out=None))
    model.add({"again": small_bank.select(Part.BASE_HELD_OUT).of_class(3)[:5]})
    model.set_novel_share(share)
    found = explain(model, "again")
    worst = next(one for one in found.trial.confusions if one.name == base.names[3])
    taken = [
        model.without("again", row).head.best(model.examples[row].feature.unsqueeze(0)).item() == 3
        for row in model.state["again"]
    ]
    assert worst.alone and worst.count == sum(taken) and worst.share == sum(taken) / 5
    said = f"{worst.share:.0%} of its examples, each left out in turn, are taken for {base.names[3]!r}"
    assert any(said in line for line in found.warnings) == (sum(taken) >= 3) == (share is not None)
    assert f"taken for {base.names[3]!r}: " not in found.as_text()


def test_sound_classes_are_seldom_warned_of(base: BaseKnowledge, newcomers: Newcomers) -> None:
    model = Model(base)
    model.add({name: rows[:10] for name, rows in newcomers.items()})
    warned = [name for name in newcomers if any("nearly" in line for line in warnings_about(model, name))]
    assert len(warned) <= 2


def test_a_trial_leaves_examples_out_one_by_one(base: BaseKnowledge, newcomers: Newcomers) -> None:
    rows = {name: newcomers[name][:4] for name in ("new 0", "new 1")}
    model = Model(base)
    model.add(rows)
    found = self_test(model, "new 0")
    right = 0
    for i in range(4):  # the slow way: a model that never had the example
        other = Model(base)
        other.add({**rows, "new 0": torch.cat([rows["new 0"][:i], rows["new 0"][i + 1 :]])})
        right += int(other.scores(rows["new 0"][i : i + 1]).argmax(1)) == other.names.index("new 0")
    assert (found.n, found.right) == (4, right)
    assert model.shots("new 0") == 4 and model.head.names == model.names


def test_what_was_tried_is_said(base: BaseKnowledge, newcomers: Newcomers) -> None:
    """Of many examples every third or so; of a class that has one, what is known comes from the others."""
    model = Model(base)
    model.add({"new 0": newcomers["new 0"], "new 1": newcomers["new 1"][:5]})
    twin = (newcomers["new 1"][5:10].mean(0) + newcomers["new 1"][:5].mean(0))[None]
    model.add({"twin": twin})
    many = explain(model, "new 0")
    assert many.trial.n == 10 and f"{many.trial.right} of 10 of its 20 examples, each left" in many.as_text()
    few = explain(model, "new 1")
    assert f"{few.trial.right} of 5 examples, each left out in turn, are recognised" in few.as_text()
    assert "mistaken for each other: twin" in few.as_text()
    lone = explain(model, "twin")
    assert "not tried out: that takes two examples\n" in lone.as_text()
    assert "of pictures of 'new 1' are taken for it" in lone.as_text() and "two are" not in lone.as_text()
    assert any("'new 1' are taken for it; is it" in line for line in lone.warnings)


def test_what_to_expect_of_a_class(base: BaseKnowledge, newcomers: Newcomers) -> None:
    assert base.calibration.figures["accuracy_added_5"] >= base.calibration.figures["accuracy_added_1"] - 0.1
    model = Model(base)
    model.add({name: rows[:5] for name, rows in newcomers.items()})
    for name, rows in newcomers.items():
        found = explain(model, name)
        assert found.expected is not None and 0 < found.expected.now <= found.expected.more < 1
        worse = expected(model, name, SelfTest(5, 0, ()))
        assert worse is not None and worse.now <= found.expected.now
        assert "is it enough?" in found.as_text() and len(rows) == 20
        usual, own = base.calibration.figures["accuracy_added_5"], found.trial.right / found.trial.n
        assert min(usual, own) - 0.1 <= found.expected.now <= max(usual, own) + 0.1
    assert explain(model, base.names[0]).expected is None


@pytest.mark.parametrize("older", [False, True])
def test_more_examples_bring_less_and_less_but_never_nothing(
    base: BaseKnowledge, newcomers: Newcomers, older: bool
) -> None:
    """Beyond the numbers that were tried, too, and in models of before, which say no gains."""
    figures = {"accuracy_added_5": 0.6, "accuracy_added_10": 0.7, "accuracy_added_20": 0.75}
    figures |= {f"strength_added_{k}": 10.0 for k in (5, 10, 20)}
    figures |= {} if older else {"gain_added_5": 0.5, "gain_added_10": 0.3, "gain_added_20": 0.15}
    own, model = base.calibration, Model(base)
    rows = torch.cat([newcomers["new 0"], newcomers["new 1"], newcomers["new 2"]])
    base.method.balance = replace(own, figures=figures)
    try:
        brought = []
        for shots in (5, 10, 20, 40, 60):
            model.add({"okapi": rows[:shots]}, update=shots > 5)
            found = expected(model, "okapi", SelfTest(0, 0, ()))
            assert found is not None and model.shots("okapi") == shots
            brought.append(found.more - found.now)
    finally:
        base.method.balance = own
    assert all(more > less > 0.003 for more, less in itertools.pairwise(brought))
    assert brought[0] == pytest.approx(0.1 if older else 1 / (1 + math.exp(-math.log(1.5) - 0.5)) - 0.6)


def test_a_model_says_what_more_examples_of_one_class_bring(base: BaseKnowledge) -> None:
    figures = base.calibration.figures
    gains = {key: value for key, value in figures.items() if key.startswith("gain_added_")}
    assert {f"gain_added_{k}" for k in (1, 2, 5)} <= set(gains)
    assert all(value >= 0 for value in gains.values()) and gains["gain_added_1"] > 0
