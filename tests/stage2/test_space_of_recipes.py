from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from wdae.bank import FeatureBank
from wdae.calibration.step_size import choose_steps
from wdae.config import load
from wdae.errors import EpisodeError
from wdae.evaluation.protocol import nearest_mean_accuracy
from wdae.methods.saved import load_method
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.space import powered, whitening
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe, SpaceConfig
from wdae.stage2.run import MODEL, train_method
from wdae.stage2.space import CENTRES, POWERS, SHRINKS, find_space, in_space, refit
from wdae.synthetic import synthetic_bank

SMALL = {
    "device": "cpu",
    "precision": "float32",
    "denoiser.hidden": 8,
    "denoiser.neighbours": 5,
    "training.n_fake": 6,
    "training.steps": 4,
    "training.episodes_per_step": 4,
    "training.validate_every": 2,
    "training.validation_episodes": 10,
    "training.base_queries": 10,
    "evaluation.queries": 6,
    "evaluation.step_episodes": 40,
    "evaluation.tuned_shots": [1, 3],
}


def test_no_space_is_asked_for(small_bank: FeatureBank) -> None:
    assert find_space(small_bank, SpaceConfig()) is None


def test_class_means_where_nothing_is_learned_anew(small_bank: FeatureBank) -> None:
    space = find_space(small_bank, SpaceConfig(power=0.5, centre=0.6))
    assert space is not None
    train = small_bank.select(Part.BASE_TRAIN)
    centre = 0.6 * powered(train.features, 0.5).mean(0)
    torch.testing.assert_close(space.centre, centre)
    for c in range(small_bank.n_base):
        mean = unit(powered(train.of_class(c), 0.5) - centre).mean(0)
        torch.testing.assert_close(space.weights[c], unit(mean))


def test_learned_weights_where_the_space_stays(small_bank: FeatureBank) -> None:
    """With power 1 and no centre the weights start as the bank has them."""
    space = find_space(small_bank, SpaceConfig(refit_steps=1))
    assert space is not None and small_bank.base_weights is not None
    torch.testing.assert_close(space.weights, unit(small_bank.base_weights), atol=3e-3, rtol=0)


def test_power_and_centre_are_the_best_on_validation_classes(small_bank: FeatureBank) -> None:
    space = find_space(small_bank, SpaceConfig(power=None, centre=None, choice_episodes=50), seed=7)
    assert space is not None
    train, pool = small_bank.select(Part.BASE_TRAIN), small_bank.select(Part.VALIDATION)
    found = {}
    for power, centre in itertools.product(POWERS, CENTRES):
        shift = centre * powered(train.features, power).mean(0)
        moved = replace(pool, features=unit(powered(pool.features, power) - shift))
        found[power, centre] = sum(
            nearest_mean_accuracy(moved, 5, k, 15, 50, derive_seed(7, "space")).mean for k in (1, 5)
        )
    power, centre = max(found, key=lambda pair: found[pair])
    assert space.power == power
    torch.testing.assert_close(space.centre, centre * powered(train.features, power).mean(0))


def test_shrink_is_the_best_on_validation_classes_after_power_and_centre(small_bank: FeatureBank) -> None:
    config = SpaceConfig(power=None, centre=None, shrink=None, choice_episodes=50)
    space, without = (
        find_space(small_bank, config.model_copy(update={"shrink": s}), seed=7) for s in (None, 1.0)
    )
    assert space is not None and without is not None and without.whiten is None
    assert space.power == without.power and torch.equal(space.centre, without.centre)
    train, pool = small_bank.select(Part.BASE_TRAIN), small_bank.select(Part.VALIDATION)
    by_strength = whitening(without.features(train.features), train.labels, SHRINKS)
    found = {}
    for s in SHRINKS:
        moved = replace(pool, features=unit(without.features(pool.features) @ by_strength[s]))
        found[s] = sum(
            nearest_mean_accuracy(moved, 5, k, 15, 50, derive_seed(7, "space")).mean for k in (1, 5)
        )
    assert found[space.shrink] == pytest.approx(max(found.values()), abs=0.002)
    if space.shrink < 1:
        torch.testing.assert_close(space.whiten, by_strength[space.shrink])
    given = find_space(small_bank, SpaceConfig(shrink=0.8))
    assert given is not None and given.whiten is not None and (given.power, given.shrink) == (1.0, 0.8)
    means = [unit(given.features(train.of_class(c)).mean(0)) for c in range(small_bank.n_base)]
    torch.testing.assert_close(given.weights, torch.stack(means))


def test_a_bank_without_validation_classes() -> None:
    bank = synthetic_bank(8, 0, 3, 20, 8, seed=0, held_out_per_class=1)
    with pytest.raises(EpisodeError, match="chosen on validation classes, and the bank has none; give them"):
        find_space(bank, SpaceConfig(power=None))


def test_weights_learned_anew_fit_better_and_are_the_same_each_time(small_bank: FeatureBank) -> None:
    train = small_bank.select(Part.BASE_TRAIN)
    start = unit(torch.randn(small_bank.n_base, small_bank.dim, generator=torch.Generator().manual_seed(0)))

    def loss(weights: torch.Tensor, scale: float) -> float:
        return float(F.cross_entropy(scale * train.features @ weights.T, train.labels))

    values = [loss(*refit(train.features, train.labels, start, 10.0, n, 0)) for n in (0, 20, 80)]
    assert values[0] > values[1] > values[2]
    a, b = (refit(train.features, train.labels, start, 10.0, 20, 3) for _ in range(2))
    assert torch.equal(a[0], b[0]) and a[1] == b[1]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_bank_in_a_space(small_bank: FeatureBank, tmp_path: Path, dtype: str) -> None:
    small_bank.save(tmp_path / "bank", dtype=dtype)  # type: ignore[arg-type]
    bank = FeatureBank.open(tmp_path / "bank")
    space = find_space(bank, SpaceConfig(power=0.7, centre=0.5, refit_steps=3))
    assert space is not None
    moved = in_space(bank, space)
    for part in Part:
        want = space.features(bank.select(part).features)
        torch.testing.assert_close(moved.select(part).features, want)
    assert moved.base_weights is not None and torch.equal(moved.base_weights, space.weights)


def trained(folder: Path, bank: FeatureBank, **changes: object) -> tuple[WDAE, MetaRecipe]:
    recipe = load(MetaRecipe, None, {**SMALL, **changes})
    method = train_method(Run.create(folder, recipe), recipe, bank)
    assert isinstance(method, WDAE)
    return method, recipe


def test_balance_off_is_the_paper(small_bank: FeatureBank, tmp_path: Path) -> None:
    """The denoiser is the same bit for bit, ε is the choice for novel accuracy, scores are left alone."""
    plain, recipe = trained(tmp_path / "off", small_bank, **{"evaluation.balance": "off"})
    tuned, _ = trained(tmp_path / "on", small_bank)
    assert plain.balance is None and plain.space is None and plain.refine_base
    for name, value in plain.denoiser.state_dict().items():
        assert torch.equal(value, tuned.denoiser.state_dict()[name])
    seed = derive_seed(recipe.seed, "step size")
    assert plain.steps == choose_steps(plain, small_bank, [1, 5], n_query=6, n_episodes=40, seed=seed)
    assert tuned.balance is not None and list(tuned.balance.offsets) == [1, 3, 5]


def test_a_whole_run_in_a_space(small_bank: FeatureBank, tmp_path: Path) -> None:
    changes = {
        "space.power": None,
        "space.centre": 0.5,
        "space.shrink": 0.9,
        "space.refit_steps": 5,
        "evaluation.refine_base": False,
    }
    method, _ = trained(tmp_path / "run", small_bank, **changes)
    assert method.space is not None and not method.refine_base
    again = load_method(tmp_path / "run" / MODEL)
    assert again.describe() == method.describe()


def test_without_validation_classes_the_balance_is_found_on_base_classes(tmp_path: Path) -> None:
    bank = synthetic_bank(20, 0, 3, 20, 12, seed=0, held_out_per_class=8)
    method, _ = trained(tmp_path / "run", bank, **{"training.keep": "last"})
    assert method.steps == {1: 1.0, 5: 0.5}  # the paper's: these classes have trained the denoiser
    assert method.balance is not None and list(method.balance.offsets) == [1, 3, 5]


def test_nothing_held_out_leaves_scores_alone(tmp_path: Path) -> None:
    bank = synthetic_bank(20, 6, 3, 20, 12, seed=0, held_out_per_class=0)
    method, _ = trained(tmp_path / "run", bank)
    assert method.balance is None
