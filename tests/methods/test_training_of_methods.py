"""The one stage-2 loop with learned methods other than the denoiser."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from method_samples import bank_of, recipe_of

from wdae.comparison.config import CompareRecipe
from wdae.comparison.run import training_recipe
from wdae.methods import find
from wdae.stage2.config import MetaRecipe
from wdae.stage2.train import train_learned


def short(name: str) -> MetaRecipe:
    recipe = recipe_of(name)
    training = recipe.training.model_copy(update={"steps": 8, "validate_every": 3, "keep": "last"})
    return recipe.model_copy(update={"training": training})


@pytest.mark.parametrize("name", ["lwof-attention", "gnn", "leo"])  # SGD, Adam, and one that draws noise
def test_a_resumed_run_ends_where_an_unbroken_one_does(name: str, tmp_path: Path) -> None:
    bank, recipe = bank_of("easy"), short(name)
    whole = train_learned(recipe, bank)
    done = 0

    def die(n: int, **figures: float) -> None:
        nonlocal done
        done += n
        if done > 5 * recipe.training.episodes_per_step:
            raise RuntimeError("the machine stops")

    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(RuntimeError):
        train_learned(recipe, bank, checkpoint=path, on_progress=die)
    again = train_learned(recipe, bank, checkpoint=path, resume=True)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key


def test_the_start_counts_as_a_candidate() -> None:
    recipe = recipe_of("activations")
    wild = recipe.training.model_copy(update={"learning_rate": 1e3, "steps": 4, "validate_every": 2})
    method = train_learned(recipe.model_copy(update={"training": wild}), bank_of("easy"))
    assert torch.equal(method.predict.weight, torch.eye(24))  # type: ignore[union-attr]


def test_methods_learn_the_episodes_they_are_tested_on() -> None:
    recipe = training_recipe("snail", CompareRecipe(ways=7))
    assert (recipe.training.n_fake, recipe.options) == (7, {"n_way": 7})
    assert training_recipe("lwof-average", CompareRecipe(ways=7)).training.n_fake == 20
    assert training_recipe("wdae-mlp", CompareRecipe()).denoiser.kind == "mlp"
    once, both = (
        training_recipe("snail", CompareRecipe(), 5).training,
        training_recipe("snail", CompareRecipe()),
    )
    assert (once.steps, once.shots) == (find("snail").training_length * 300, (5,))
    assert (both.training.steps, both.training.shots) == (2 * once.steps, (1, 5))


def test_joint_methods_see_base_queries_and_others_do_not() -> None:
    lines: list[dict[str, float]] = []
    train_learned(short("tpn"), bank_of("easy"), log=lines.append)
    assert all(line["loss"] < 3 for line in lines)  # log 5 is chance among five novel classes
    lines.clear()
    train_learned(short("activations"), bank_of("easy"), log=lines.append)
    assert len(lines) == 3
