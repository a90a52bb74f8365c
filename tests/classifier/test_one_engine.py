"""What is evaluated is what is taught with: an episode's scores and those of a model with the same shots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.classifier import BaseKnowledge, LearnConfig, Model, learn, load, save
from wdae.classifier.learning import as_recipe, fitted, held_out_parts
from wdae.episodes import take_rows
from wdae.methods import WDAE, InitialEstimate, Method
from wdae.methods.base import Support, base_classes
from wdae.methods.calibration import Calibration
from wdae.methods.many_shots import draw_posterior
from wdae.methods.saved import save_method
from wdae.nn import Denoiser
from wdae.nn.cosine import unit
from wdae.nn.space import FeatureSpace, whitening
from wdae.parts import Part
from wdae.stage2.run import fit_method
from wdae.synthetic import synthetic_bank

BALANCE = Calibration(12.0, {1: 0.9, 5: 1.2}, {1: 0.5, 5: -1.0})
SHORT = {
    "denoiser.hidden": 12,
    "denoiser.neighbours": 5,
    "training.steps": 3,
    "training.validation_episodes": 20,
    "evaluation.step_episodes": 40,
    "device": "cpu",
    "precision": "float32",
}


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return synthetic_bank(24, 5, 6, 26, 16, seed=1, held_out_per_class=6)


def made(bank: FeatureBank, name: str, refine_base: bool) -> Method:
    if name == "initial-estimate":
        return InitialEstimate(BALANCE)
    generator = torch.Generator().manual_seed(3)
    kind = "mlp" if name == "wdae-mlp" else "gnn"
    denoiser = Denoiser(bank.dim, 12, 2, 0.9, kind, generator).eval()
    space = None
    if name.startswith("wdae-gnn+"):
        train = bank.select(Part.BASE_TRAIN)
        centre = 0.3 * train.features.mean(0)
        powered = FeatureSpace(0.5, centre, train.features, 1.0)
        sums = torch.zeros(bank.n_base, bank.dim).index_add(0, train.labels, powered.features(train.features))
        space = FeatureSpace(0.5, centre, unit(sums), 11.0)
        if name.endswith("shrink"):
            whiten = whitening(powered.features(train.features), train.labels, (0.7,))[0.7]
            space = replace(space, weights=unit(sums @ whiten), whiten=whiten, shrink=0.7)
    posterior = None
    if name.endswith("shrink") and space is not None:
        train = replace(train, features=space.features(train.features))
        posterior = draw_posterior(train, 3, 0.3, 0)
    return WDAE(
        denoiser,
        9.0,
        {1: 0.8, 5: 0.4},
        n_neighbours=5,
        balance=BALANCE,
        refine_base=refine_base,
        space=space,
        posterior=posterior,
    )


def episode(bank: FeatureBank, shots: Sequence[int]) -> tuple[Support, Tensor, list[Tensor]]:
    """One episode of a class for each number of shots: as few_way gives it, and as a user does."""
    pool = bank.select(Part.NOVEL)
    rows = torch.zeros(1, len(shots), max(shots), dtype=torch.int64)
    mask = torch.zeros(1, len(shots), max(shots), dtype=torch.bool)
    given = []
    for c, k in enumerate(shots):
        rows[0, c, :k] = pool.starts[c] + torch.arange(k)
        mask[0, c, :k] = True
        given.append(3.0 * pool.features[rows[0, c, :k]])  # a user's vectors have any length
    queries = torch.cat([pool.features[::3], bank.select(Part.BASE_HELD_OUT).features[::3]])
    support = take_rows(pool.features, rows)
    return Support(support, None if bool(mask.all()) else mask), queries, given


LEARNED: dict[tuple[str, bool], tuple[Any, BaseKnowledge]] = {}


def learned(bank: FeatureBank, name: str, refine_base: bool) -> tuple[Any, BaseKnowledge]:
    """A method and what a model learned with it knows; once for all numbers of shots."""
    if (name, refine_base) not in LEARNED:
        method = made(bank, name, refine_base)
        LEARNED[name, refine_base] = method, learn(bank, LearnConfig(novel_share=0.5), method=method).base
    return LEARNED[name, refine_base]


@pytest.mark.parametrize("refine_base", [True, False])
@pytest.mark.parametrize(
    "shots", [(1,) * 5, (2,) * 5, (5,) * 5, (1, 2, 5, 3, 7), (1, 12, 20, 3, 10)], ids=str
)
@pytest.mark.parametrize(
    "name", ["wdae-gnn", "wdae-mlp", "wdae-gnn+", "wdae-gnn+-shrink", "initial-estimate"]
)
def test_scores_are_those_of_an_evaluation(
    bank: FeatureBank, name: str, shots: tuple[int, ...], refine_base: bool, tmp_path: Path
) -> None:
    method, base = learned(bank, name, refine_base)
    support, queries, given = episode(bank, shots)
    wanted = method.on(base_classes(bank)).adapt(support, joint=True)(queries[None])[0]
    model = Model(base)
    model.add({f"new {c}": rows for c, rows in enumerate(given)})
    torch.testing.assert_close(model.scores(queries), wanted, atol=1e-5, rtol=0)
    save(model, tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model").scores(queries), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("balance", ["auto", "off"])
def test_a_run_is_taught_with(bank: FeatureBank, tmp_path: Path, balance: str) -> None:
    """What wdae train has trained, in its file; and the same recipe trained by learn gives the same model."""
    recipe = fitted(as_recipe({**SHORT, "evaluation.balance": balance}), bank)
    method = fit_method(recipe, bank)
    save_method(tmp_path / "model.safetensors", method)
    support, queries, given = episode(bank, (1, 2, 5))
    wanted = method.on(base_classes(bank)).adapt(support, joint=True)(queries[None])[0]  # type: ignore[attr-defined]
    options: list[dict[str, Any]] = [{"method": tmp_path}, {"recipe": recipe}]
    for option in options:
        model = learn(bank, LearnConfig(novel_share=0.5), **option)
        model.add({f"new {c}": rows for c, rows in enumerate(given)})
        torch.testing.assert_close(model.scores(queries), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [None, 0.2])
def test_what_is_expected_is_the_same_in_an_evaluation(bank: FeatureBank, share: float | None) -> None:
    """A model's own method, with the share that protects base classes or one that was asked for."""
    model = learn(bank, LearnConfig(novel_share=share), method=made(bank, "wdae-gnn", False))
    support, queries, given = episode(bank, (1, 2, 5))
    adapted = model.base.method.on(base_classes(bank)).adapt(support, joint=True)(queries[None])[0]
    model.add({f"new {c}": rows for c, rows in enumerate(given)})
    torch.testing.assert_close(model.scores(queries), adapted, atol=1e-5, rtol=0)
    assert bool(model.base.calibration.protecting)
    half = model.scores(queries, expect=0.5)
    assert not torch.allclose(half, adapted, atol=1e-3)


def test_few_images_leave_the_features_as_they_are() -> None:
    """Base weights learned anew from 20 images a class lose more than a space of its own wins."""
    train = embedded_bank().select(Part.BASE_TRAIN)
    labels = torch.arange(15).repeat_interleave(20)
    features = torch.cat([train.of_class(c)[:20] for c in range(15)])
    bank = FeatureBank.build(features, labels, train.names[:15], held_out_parts(labels, 0.2, 0))
    short = {"training.steps": 1, "training.validation_episodes": 20, "evaluation.step_episodes": 20}
    assert learn(bank, recipe=short).base.info["recipe"]["space"]["refit_steps"] == 0
    given = learn(bank, recipe={**short, "space.power": 0.5, "space.centre": 0.0, "space.shrink": 0.9})
    assert given.base.info["recipe"]["space"]["refit_steps"] == 100
