from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from seeded import randn
from torch import Tensor

from wdae.errors import ModelError, RecipeError
from wdae.evaluation.config import EvaluationConfig
from wdae.methods import WDAE, BaseClasses, InitialEstimate, Support, WeightScorer
from wdae.methods.base import base_classes
from wdae.methods.calibration import Calibration, step_for, steps_for
from wdae.methods.learned import WeightGenerator
from wdae.methods.saved import load_method, save_method
from wdae.nn import Denoiser
from wdae.nn.cosine import unit
from wdae.nn.space import FeatureSpace
from wdae.stage2.config import MetaRecipe, TrainingConfig
from wdae.stage2.run import fit_method
from wdae.synthetic import synthetic_bank

BALANCE = Calibration(12.0, {1: 0.8, 5: 1.1}, {1: 0.4, 5: -2.0})


def wdae(dim: int = 12, **options: object) -> WDAE:
    denoiser = Denoiser(dim, 6, 2, 0.9, generator=torch.Generator().manual_seed(1)).eval()
    return WDAE(denoiser, steps={1: 0.7, 5: 0.3}, n_neighbours=4, **options)  # type: ignore[arg-type]


def episode() -> tuple[Support, BaseClasses, Tensor]:
    """Two episodes of three classes with 1 to 4 shots."""
    mask = torch.tensor([[1, 3, 4], [2, 2, 1]]).unsqueeze(-1) > torch.arange(4)
    return Support(randn(2, 3, 4, 12), mask), BaseClasses(randn(9, 12, seed=1), 7.0), randn(2, 5, 12, seed=2)


def test_balanced_scores_against_a_plain_loop() -> None:
    support, base, queries = episode()
    plain = wdae(scale=1.0).adapt(support, base, joint=True)(queries)
    found = wdae(balance=BALANCE).adapt(support, base, joint=True)(queries)
    share = 0.5 * 3 / 5  # fewer than five new classes are expected to be seen less
    prior = math.log(share / 3 * 9 / (1 - share))
    for e in range(2):
        for q in range(5):
            for c in range(12):
                score = 12.0 * float(plain[e, q, c])
                if c >= 9:
                    shots = int(support.shots[e, c - 9])
                    slope = step_for(shots, {1: 0.8, 5: 1.1})
                    score = slope * score + step_for(shots, {1: 0.4, 5: -2.0}) + prior
                assert float(found[e, q, c]) == pytest.approx(score, abs=1e-4)


def test_without_options_nothing_changes() -> None:
    """The paper's path: plain weight scores, bit for bit those of the weights alone."""
    support, base, queries = episode()
    scorer = wdae().adapt(support, base, joint=True)
    assert type(scorer) is WeightScorer
    whole, steps = wdae().on(base), steps_for(support.shots, {1: 0.7, 5: 0.3}).unsqueeze(-1)
    assert torch.equal(scorer(queries), whole._refined(whole.estimate(support), steps, True)(queries))


def test_base_weights_that_stay() -> None:
    support, base, _ = episode()
    stays = wdae(refine_base=False).adapt(support, base, joint=True)
    moves = wdae().adapt(support, base, joint=True)
    assert stays.base is not None and moves.base is not None
    assert torch.equal(stays.base, unit(base.weights))
    torch.testing.assert_close(stays.novel, moves.novel)
    assert not torch.allclose(unit(moves.base), stays.base.expand(2, -1, -1), atol=1e-3)


def test_several_steps_with_base_weights_that_stay() -> None:
    support, base, _ = episode()
    stays = wdae(refine_base=False, n_steps=2).adapt(support, base, joint=True)
    assert stays.base is not None and torch.equal(stays.base, unit(base.weights))


def test_a_space_is_the_same_as_working_on_moved_features() -> None:
    support, base, queries = episode()
    space = FeatureSpace(0.6, 0.1 * randn(12, seed=5), unit(randn(9, 12, seed=6)), 9.0)
    inside = Support(space.features(support.features), support.mask)
    moved = BaseClasses(space.weights, space.scale)
    for balance in (None, BALANCE):
        want = wdae(balance=balance).adapt(inside, moved, joint=True)(space.features(queries))
        found = wdae(balance=balance, space=space).adapt(support, base, joint=True)(queries)
        assert torch.equal(found, want)


def test_a_space_of_other_base_classes_is_refused() -> None:
    support, _, _ = episode()
    space = FeatureSpace(1.0, torch.zeros(12), unit(randn(9, 12)), 9.0)
    with pytest.raises(ModelError, match="has learned 9 base classes of size 12 anew, and got 4"):
        wdae(space=space).adapt(support, BaseClasses(randn(4, 12)))


def test_saved_with_space_and_balance(tmp_path) -> None:  # type: ignore[no-untyped-def]
    support, base, queries = episode()
    space = FeatureSpace(0.6, 0.1 * randn(12, seed=5), unit(randn(9, 12, seed=6)), 9.0)
    method = wdae(balance=BALANCE, space=space, refine_base=False)
    save_method(tmp_path / "model.safetensors", method)
    again = load_method(tmp_path / "model.safetensors")
    assert torch.equal(
        method.adapt(support, base, joint=True)(queries), again.adapt(support, base, joint=True)(queries)
    )
    assert again.describe() == method.describe()


def test_a_balanced_initial_estimate_is_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    support, base, queries = episode()
    method = InitialEstimate(BALANCE)
    save_method(tmp_path / "model.safetensors", method)
    again = load_method(tmp_path / "model.safetensors")
    found = again.adapt(support, base, joint=True)(queries)
    assert torch.equal(found, method.adapt(support, base, joint=True)(queries))
    plain = InitialEstimate().adapt(support, base, joint=True)(queries)
    torch.testing.assert_close(found[..., :9], plain[..., :9] * 12.0 / base.scale)


def test_a_balance_without_offsets_leaves_scores_alone() -> None:
    support, base, queries = episode()
    plain = wdae(scale=7.0).adapt(support, base, joint=True)(queries)
    assert torch.equal(wdae(balance=Calibration(7.0)).adapt(support, base, joint=True)(queries), plain)


def test_half_precision_halves_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    save_method(tmp_path / "whole.safetensors", wdae(balance=BALANCE))
    save_method(tmp_path / "half.safetensors", wdae(balance=BALANCE), half=True)
    half, whole = ((tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole"))
    assert half < 0.75 * whole
    support, base, queries = episode()
    again = load_method(tmp_path / "half.safetensors")
    wanted = wdae(balance=BALANCE).adapt(support, base, joint=True)(queries)
    torch.testing.assert_close(again.adapt(support, base, joint=True)(queries), wanted, atol=0.05, rtol=0)


def test_a_generator_of_weights_may_be_balanced_and_keeps_it(tmp_path: Path) -> None:
    bank = synthetic_bank(16, 6, 6, 24, 12, seed=0, held_out_per_class=6)
    recipe = MetaRecipe(
        method="lwof-attention",
        device="cpu",
        training=TrainingConfig(steps=2, n_fake=4, shots=(1, 5), validation_episodes=10),
        evaluation=EvaluationConfig(balance="validation", step_episodes=40, queries=5, split_held_out=True),
    )
    method = fit_method(recipe, bank)
    assert isinstance(method, WeightGenerator) and method.balance is not None
    save_method(tmp_path / "model.safetensors", method, "lwof-attention")
    loaded = load_method(tmp_path / "model.safetensors")
    support, queries = Support(randn(2, 3, 4, 12)), randn(2, 5, 12, seed=2)
    base = base_classes(bank)
    with torch.no_grad():
        found = loaded.adapt(support, base, joint=True)(queries)
        method.balance, kept = None, method.balance
        plain = method.adapt(support, base, joint=True)(queries) / method.scale
    slope, offset = (step_for(4, table) for table in (kept.slopes, kept.offsets))
    wanted = slope * kept.gain * plain[..., 16:] + offset + float(kept.prior(16, torch.full((3,), 4))[0])
    torch.testing.assert_close(found[..., 16:], wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[..., :16], kept.gain * plain[..., :16], atol=1e-4, rtol=1e-4)


def test_a_method_without_weights_is_refused_a_balance() -> None:
    bank = synthetic_bank(16, 6, 6, 24, 12, seed=0, held_out_per_class=6)
    training = TrainingConfig(steps=1, n_fake=5, shots=(1,), validation_episodes=10)
    evaluation = EvaluationConfig(balance="validation", queries=5)
    recipe = MetaRecipe(method="relation", device="cpu", training=training, evaluation=evaluation)
    with pytest.raises(RecipeError, match="to off, or to validation"):
        fit_method(recipe, bank)
