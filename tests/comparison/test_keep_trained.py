"""The trained weights are kept only if they beat the start on validation classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.comparison import run as comparison_run
from wdae.comparison.config import CompareRecipe
from wdae.comparison.run import better_of, training_recipe
from wdae.evaluation.protocol import few_way
from wdae.evaluation.results import Result
from wdae.methods import Method, make
from wdae.methods.baselines.activations import Activations
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.stage2 import train as stage2_train


def activations(bank: FeatureBank, scramble: float) -> Activations:
    """Nearest mean behind a map that is more or less spoiled."""
    method = make("activations", dim=bank.dim, n_base=bank.n_base)
    assert isinstance(method, Activations)
    with torch.no_grad():
        noise = torch.randn(bank.dim, bank.dim, generator=torch.Generator().manual_seed(0))
        method.predict.weight += scramble * noise
    return method.eval()


def on_validation(bank: FeatureBank, n_shot: int, n_episodes: int) -> Callable[[Method], Result]:
    return lambda method: few_way(
        method, bank, n_shot, n_query=5, n_episodes=n_episodes, joint=False, part=Part.VALIDATION
    )


@pytest.mark.parametrize("n_shot", [1, 3])
def test_the_better_one_is_kept(small_bank: FeatureBank, n_shot: int) -> None:
    good, bad = activations(small_bank, 0.0), activations(small_bank, 2.0)
    measure = on_validation(small_bank, n_shot, 200)
    kept, gain = better_of(good, bad, measure)
    assert kept is good and gain.mean > gain.ci95
    kept, loss = better_of(bad, good, measure)
    assert kept is good and loss.mean == pytest.approx(-gain.mean)


def test_without_a_gain_the_start_is_kept(small_bank: FeatureBank) -> None:
    start, same = activations(small_bank, 0.0), activations(small_bank, 0.0)
    kept, gain = better_of(same, start, on_validation(small_bank, 1, 50))
    assert kept is start and (gain.mean, gain.ci95) == (0.0, 0.0)
    with torch.no_grad():  # better on a few episodes, by luck if at all
        same.predict.weight += 1e-3
    kept, gain = better_of(same, start, on_validation(small_bank, 1, 20))
    assert kept is start and abs(gain.mean) <= gain.ci95


def test_a_training_stops_when_validations_bring_nothing_more() -> None:
    recipe = CompareRecipe(steps=40, validations=20, patience=3)
    assert training_recipe("prototypical", recipe, 1).training.patience == 3
    assert training_recipe("prototypical", CompareRecipe(), 1).training.patience is None


def test_start_and_trained_are_compared_on_episodes_that_training_has_not_chosen_on(
    small_bank: FeatureBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[int]] = {"training": set(), "comparison": set()}
    for name, module in (("training", stage2_train), ("comparison", comparison_run)):

        def noted(*given: Any, name: str = name, **named: Any) -> Result:
            seen[name].add(named["seed"])
            return few_way(*given, **named)

        monkeypatch.setattr(module, "few_way", noted)
    recipe = CompareRecipe(
        methods=("activations",), steps=2, validations=1, validation_episodes=10, episodes=10, shots=(1,)
    )
    recipe = recipe.model_copy(update={"device": "cpu", "queries": 5})
    comparison_run.run_comparison(Run.create(tmp_path / "run", recipe), recipe, small_bank)
    assert len(seen["training"]) == 1
    assert len(seen["comparison"]) == 2  # start against trained, and the test
    assert not seen["training"] & seen["comparison"]
