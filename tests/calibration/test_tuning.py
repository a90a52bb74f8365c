from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.calibration.balance import SLOPES, fit_balance, fit_offset, tune
from wdae.calibration.pseudo_novel import QueryScores, halves, set_aside, splits, where_to_play
from wdae.calibration.step_size import TUNED_STEPS, Trial, choose
from wdae.errors import EpisodeError
from wdae.evaluation.protocol import few_way
from wdae.methods import WDAE
from wdae.methods.calibration import Calibration, step_for
from wdae.nn import Denoiser
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe
from wdae.stage2.run import tune_method
from wdae.synthetic import synthetic_bank

OPTIONS: dict[str, Any] = {"n_query": 8, "n_episodes": 60}


def wdae(bank: FeatureBank, **options: Any) -> WDAE:
    denoiser = Denoiser(bank.dim, 10, 2, 0.9, generator=torch.Generator().manual_seed(1)).eval()
    return WDAE(denoiser, n_neighbours=5, **options)


def some_scores(n: int = 400, seed: int = 0) -> QueryScores:
    generator = torch.Generator().manual_seed(seed)
    base, novel = torch.randn(n, 6, generator=generator), torch.randn(n, 3, generator=generator)
    labels = torch.randint(0, 9, (n,), generator=generator)
    scores = torch.cat([base, novel], dim=1)
    scores[torch.arange(n), labels] += 2
    return QueryScores.of(scores[:, :6], scores[:, 6:], labels)


@pytest.mark.parametrize("slope", [0.8, 1.0, 1.5])
def test_the_offset_is_the_likeliest(slope: float) -> None:
    some = some_scores()
    offset = fit_offset(some, slope)
    grid = torch.linspace(-6, 6, 2401).tolist()
    best = min(grid, key=lambda o: float(some.loss(slope, o)))
    assert offset == pytest.approx(best, abs=0.006)


def test_the_offset_makes_both_kinds_equally_probable() -> None:
    some = some_scores()
    scores = some.novel + fit_offset(some) + some.prior.unsqueeze(1)
    chance = (scores.logsumexp(1) - torch.logaddexp(scores.logsumexp(1), some.mass)).exp()
    is_novel = some.place >= 0
    assert float(chance[is_novel].mean() + chance[~is_novel].mean()) == pytest.approx(1.0, abs=1e-5)


def test_offsets_far_away_are_found() -> None:
    some = some_scores()
    moved = QueryScores(
        some.mass, some.own, some.best, some.best_right, some.novel - 20, some.place, some.prior
    )
    assert fit_offset(moved) == pytest.approx(fit_offset(some) + 20, abs=1e-4)


def test_of_slopes_that_are_as_good_the_one_nearest_1_is_taken() -> None:
    labels = torch.arange(9).repeat(20)
    scores = 50 * torch.eye(9)[labels]
    scores[::2, :6] = scores[::2, :6].roll(1, dims=1)  # half of base queries are wrong with any slope
    some = QueryScores.of(scores[:, :6], scores[:, 6:], labels)
    assert len({some.accuracy(slope, fit_offset(some, slope)) for slope in SLOPES}) == 1
    assert fit_balance(some) == (1.0, fit_offset(some))


@pytest.mark.parametrize("refine_base", [True, False])
@pytest.mark.parametrize(("n_shot", "n_steps"), [(1, 1), (3, 1), (1, 3)])
def test_outcomes_are_those_of_an_evaluation(
    small_bank: FeatureBank, n_shot: int, n_steps: int, refine_base: bool
) -> None:
    """One pass for all ε, and sums of base scores, give what evaluating each ε with its balance gives."""
    method = wdae(small_bank, refine_base=refine_base, n_steps=n_steps)
    tuned = tune(method, small_bank, [n_shot], seed=4, **OPTIONS)
    for step in (0.0, 0.4, 1.0):
        outcome = tuned.trials[n_shot][step]
        offset = fit_offset(outcome.scores)
        balance = Calibration(tuned.balance.gain, {n_shot: 1.0}, {n_shot: offset})
        options: dict[str, Any] = {"refine_base": refine_base, "n_steps": n_steps}
        same = wdae(small_bank, **options, steps={n_shot: step}, balance=balance)
        seed = derive_seed(4, n_shot, 0)
        result = few_way(same, small_bank, n_shot, part=Part.VALIDATION, seed=seed, **OPTIONS)
        assert outcome.novel == pytest.approx(result.metrics["novel"].mean, abs=3e-4)
        assert outcome.all == pytest.approx(result.metrics["all"].mean, abs=3e-4)
        assert outcome.scores.base_accuracy() == pytest.approx(result.metrics["base"].mean, abs=3e-4)


def test_the_balance_is_the_best_of_all_slopes(small_bank: FeatureBank) -> None:
    tuned = tune(wdae(small_bank), small_bank, [1, 5], seed=4, **OPTIONS)
    for k in (1, 5):
        near = min(tuned.trials[k], key=lambda s: abs(s - tuned.steps[k]))
        some = tuned.trials[k][near].scores
        best = max(some.accuracy(slope, fit_offset(some, slope)) for slope in SLOPES)
        assert some.accuracy(tuned.balance.slopes[k], tuned.balance.offsets[k]) == best


def trials(curves: dict[int, dict[float, float]]) -> dict[int, dict[float, Trial]]:
    some = some_scores(4)
    return {k: {s: Trial(v, v, some) for s, v in curve.items()} for k, curve in curves.items()}


def test_rules_for_the_step() -> None:
    """A peak at ε = 0.8 / (1 + (K − 1) / 4) is found, by two numbers; a free choice follows noise."""
    steps = [round(0.1 * k, 1) for k in range(11)]
    wanted = {k: 0.8 / (1 + (k - 1) / 4) for k in (1, 2, 5, 10)}
    curves = {k: {s: 1 - (s - wanted[k]) ** 2 for s in steps} for k in wanted}
    assert choose(trials(curves)) == pytest.approx(wanted, abs=1e-3)
    curves[5][1.0] = 1.5
    assert choose(trials(curves), "free")[5] == 1.0


@pytest.mark.parametrize("rule", ["shrinking", "free"])
def test_a_step_that_costs_base_classes_too_much_is_not_taken(rule: Any) -> None:
    """The larger ε the better for novel classes, and the worse, from 0.3 on, for base classes."""
    kind, right = torch.full((1000,), -1), torch.arange(1000)
    some = QueryScores.of(torch.randn(1000, 6), torch.randn(1000, 3), torch.zeros(1000, dtype=torch.int64))

    def outcome(step: float) -> Trial:
        cost = 100 * max(0.0, step - 0.2)  # of 1000 queries
        return Trial(step, step, replace(some, place=kind, best_right=right >= cost))

    found = {k: {step: outcome(step) for step in TUNED_STEPS} for k in (1, 5)}
    assert choose(found, rule)[1] == 1.0
    assert choose(found, rule, base_drop_limit=0.045)[1] == 0.6
    assert choose(found, rule, base_drop_limit=0.0)[1] == 0.2
    harmful = {1: {step: outcome(step + 0.3 if step else 0.0) for step in TUNED_STEPS}}
    assert choose(harmful, rule, base_drop_limit=0.0) == {1: 0.0}


def test_every_number_of_shots_has_a_step_and_a_balance(small_bank: FeatureBank) -> None:
    tuned = tune(wdae(small_bank), small_bank, (1, 2, 5, 10, 20, 50), seed=4, **OPTIONS)
    assert list(tuned.steps) == [1, 2, 5, 10, 20]  # there are 26 images: none for 50 shots
    values = [step_for(k, tuned.steps) for k in range(1, 31)]
    assert all(0 <= b <= a <= 1 for a, b in itertools.pairwise(values))
    method = wdae(small_bank, steps=tuned.steps, balance=tuned.balance)
    for n_shot in (3, 7, 15):  # never tuned
        assert few_way(method, small_bank, n_shot, n_query=8, n_episodes=10).metrics["all"].mean > 0


def test_given_steps_are_kept(small_bank: FeatureBank) -> None:
    tuned = tune(wdae(small_bank), small_bank, [1, 2], steps={1: 0.5}, **OPTIONS)
    assert tuned.steps == {1: 0.5}
    assert list(tuned.balance.offsets) == [1, 2]


def test_base_classes_that_play_novel(small_bank: FeatureBank) -> None:
    parts = splits(small_bank, "base")
    assert len(parts) == 4
    assert sorted(name for part in parts for name in part.pool.names) == sorted(
        small_bank.class_names[c] for c in small_bank.base_classes
    )
    for part in parts:
        assert not set(part.pool.names) & set(part.held_out.names)
        assert len(part.base.weights) == len(part.held_out.names) == small_bank.n_base - len(part.pool.names)
    at_once = small_bank.n_base // 3
    assert [len(splits(small_bank, "base", at_once=n)) for n in (1, at_once, small_bank.n_base)] == [4, 3, 2]
    tuned = tune(wdae(small_bank), small_bank, [1, 3], where="base", steps={1: 0.5}, **OPTIONS)
    assert list(tuned.balance.offsets) == [1, 3]


def test_where_to_tune(small_bank: FeatureBank) -> None:
    assert where_to_play(small_bank) == "validation"
    assert where_to_play(synthetic_bank(8, 0, 3, 20, 8, seed=0, held_out_per_class=4)) == "base"
    assert where_to_play(synthetic_bank(8, 3, 3, 20, 8, seed=0, held_out_per_class=0)) is None


def test_more_shots_than_images(small_bank: FeatureBank) -> None:
    with pytest.raises(EpisodeError, match=r"no class has images to play novel with any of \[40\] shots"):
        tune(wdae(small_bank), small_bank, [40], **OPTIONS)


def test_balance_helps_where_novel_scores_run_high(small_bank: FeatureBank) -> None:
    method = wdae(small_bank, steps={1: 0.0})
    plain = few_way(method, small_bank, 5, n_query=8, n_episodes=200).metrics["all"].mean
    tuned = tune(method, small_bank, [5], steps={1: 0.0}, n_query=8, n_episodes=300)
    method.balance = tuned.balance
    assert few_way(method, small_bank, 5, n_query=8, n_episodes=200).metrics["all"].mean > plain


def test_a_recipe_limits_what_base_classes_lose(small_bank: FeatureBank) -> None:
    def step(limit: float | None) -> float:
        method = wdae(small_bank)
        evaluation = {
            "shots": [1],
            "tuned_shots": [1],
            "step_episodes": 40,
            "queries": 5,
            "step_rule": "free",
        }
        values = {"evaluation": evaluation | {"base_drop_limit": limit}, "device": "cpu", "seed": 4}
        tune_method(method, MetaRecipe.model_validate(values), small_bank)
        return method.steps[1]

    assert step(0.0) < step(None) == step(1.0)


def test_base_classes_set_aside_as_validation_classes() -> None:
    bank = synthetic_bank(20, 0, 3, 20, 8, seed=0, held_out_per_class=6)
    smaller = set_aside(bank, images=6, most=12, seed=0)
    aside = {smaller.class_names[c] for c in smaller.classes_of(Part.VALIDATION)}
    stays = [smaller.class_names[c] for c in smaller.base_classes]
    assert len(aside) == 4 and len(stays) == 12 and not aside & set(stays)
    assert set(smaller.counts(Part.VALIDATION)) == {6}  # held-out images are enough
    assert set(set_aside(bank, images=7, most=12, seed=0).counts(Part.VALIDATION)) == {20}
    assert smaller.base_weights is not None and bank.base_weights is not None
    for name, weight in zip(stays, smaller.base_weights, strict=True):
        assert torch.equal(weight, bank.base_weights[bank.base_classes.index(bank.class_names.index(name))])
    assert not smaller.has(Part.NOVEL)


def test_a_bank_with_validation_classes_is_trained_on_as_it_is(small_bank: FeatureBank) -> None:
    assert set_aside(small_bank, images=6, most=1000, seed=0) is small_bank


def test_a_few_base_classes_play_novel_one_at_a_time() -> None:
    bank = synthetic_bank(3, 0, 0, 10, 8, seed=0, held_out_per_class=2)
    assert [split.pool.counts.tolist() for split in splits(bank, "base")] == [[2]] * 3
    assert [split.pool.counts.tolist() for split in splits(bank, "base", images=3)] == [[10]] * 3


@pytest.mark.parametrize(("n_base", "n_validation"), [(16, 0), (16, 7), (12, 4)])
def test_halves_have_other_classes(n_base: int, n_validation: int) -> None:
    """Calibration errors are of classes that nothing was found on."""
    bank = synthetic_bank(n_base, n_validation, 0, 10, 8, seed=0, held_out_per_class=3)
    where = where_to_play(bank)
    assert where == ("validation" if n_validation else "base")
    played = [{name for split in half for name in split.pool.names} for half in halves(splits(bank, where))]
    assert len(played) == 2
    assert not played[0] & played[1]
    all_names = bank.select(Part.VALIDATION if n_validation else Part.BASE_TRAIN).names
    assert played[0] | played[1] == set(all_names)


def test_too_few_classes_for_halves_play_in_both() -> None:
    bank = synthetic_bank(8, 3, 0, 10, 8, seed=0, held_out_per_class=3)
    found = splits(bank, "validation")
    assert halves(found) == [found, found]


def test_a_step_is_chosen_for_novel_accuracy_or_for_both() -> None:
    some = some_scores(4)
    novel, among_all = {0.0: 0.5, 0.4: 0.6, 1.0: 0.7}, {0.0: 0.5, 0.4: 0.48, 1.0: 0.3}
    curve = {1: {step: Trial(novel[step], among_all[step], some) for step in novel}}
    assert choose(curve, "free", "novel") == {1: 1.0}
    assert choose(curve, "free", "both") == {1: 0.4}  # all alone would take 0
