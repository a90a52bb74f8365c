"""With ``evaluation.split_held_out`` nothing that is fitted on a base picture is tested with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.evaluation.config import EvaluationConfig
from wdae.methods import WDAE, make
from wdae.methods.learned import WeightGenerator
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.run import fit_method, report_methods
from wdae.synthetic import synthetic_bank


def recipe(method: str | None = None, split: bool = True) -> MetaRecipe:
    return MetaRecipe(
        method=method,
        device="cpu",
        denoiser=DenoiserConfig(hidden=8),
        training=TrainingConfig(steps=2, n_fake=4, validation_episodes=10),
        evaluation=EvaluationConfig(
            balance="validation", shots=(1,), queries=5, episodes=30, step_episodes=40, split_held_out=split
        ),
    )


def bank() -> FeatureBank:
    return synthetic_bank(16, 6, 6, 24, 12, seed=0, held_out_per_class=6)


def with_other_pictures(bank: FeatureBank, first: int) -> FeatureBank:
    """Every other held-out picture of a class, from the first or the second on, replaced by another one."""
    features = bank.features.clone()
    for c in bank.base_classes:
        own = ((bank.labels == c) & (bank.parts == Part.BASE_HELD_OUT.code)).nonzero()[:, 0]
        features[own[first::2]] = torch.randn(3, bank.dim, generator=torch.Generator().manual_seed(c))
    return replace(bank, features=features)


@pytest.mark.parametrize("method", [None, "lwof-attention"])
def test_half_of_the_pictures_are_not_fitted_on(method: str | None) -> None:
    def found(bank: FeatureBank, split: bool = True) -> dict[str, object]:
        made = fit_method(recipe(method, split), bank)
        assert isinstance(made, WDAE | WeightGenerator) and made.balance is not None
        return made.balance.as_json() | {"steps": made.steps if isinstance(made, WDAE) else None}

    fitted, tested = (with_other_pictures(bank(), first) for first in (0, 1))
    whole = found(bank())
    assert found(tested) == whole
    assert found(fitted) != whole
    assert found(tested, split=False) != found(bank(), split=False)


def test_the_other_half_are_the_queries(tmp_path: Path) -> None:
    def measured(bank: FeatureBank, split: bool = True) -> list[list[float]]:
        made = recipe(split=split)
        run = Run.create(tmp_path / "run", made, force=True)
        table = report_methods(run, [make("fine-tune", n_steps=2)], made, bank)
        return [result.per_episode["all"].tolist() for result in table]

    fitted, tested = (with_other_pictures(bank(), first) for first in (0, 1))
    whole = measured(bank())
    assert len(whole) == 2
    assert measured(fitted) == whole
    assert all(one != other for one, other in zip(measured(tested), whole, strict=True))
    assert measured(fitted, split=False) != measured(bank(), split=False)
