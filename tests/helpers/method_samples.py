"""Trained methods for the shared checks: every registered one, trained briefly on a small bank."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from wdae.bank import FeatureBank
from wdae.comparison.config import CompareRecipe
from wdae.comparison.run import training_recipe
from wdae.methods import LearnedMethod, Method, find, is_learned, make
from wdae.methods.base import base_classes, prepared
from wdae.methods.wdae import WDAE
from wdae.parts import Part
from wdae.stage2.config import MetaRecipe
from wdae.stage2.learner import as_method
from wdae.stage2.train import train, train_learned
from wdae.synthetic import synthetic_bank

# These start knowing nothing of how to compare; the others start at or near nearest mean.
# They train for four times as many steps as these.
STEPS = {("snail", "easy"): 46, ("snail", "no-spread"): 50, ("relation", "no-spread"): 100}


@cache
def bank_of(kind: str) -> FeatureBank:
    """``easy``: a small synthetic bank; ``no-spread``: all images of a class are alike."""
    if kind == "easy":
        return synthetic_bank(24, 6, 8, 32, 24, seed=3, held_out_per_class=6, spread=1.0)
    bank = synthetic_bank(300, 6, 8, 22, 24, seed=3, held_out_per_class=1)  # its labels, other features
    directions = torch.randn(len(bank.class_names), bank.dim, generator=torch.Generator().manual_seed(0))
    features = torch.nn.functional.normalize(directions, dim=1)[bank.labels]
    weights = torch.nn.functional.normalize(directions, dim=1)[bank.base_classes]
    return FeatureBank.build(features, bank.labels, bank.class_names, bank.parts, weights, 10.0)


def recipe_of(name: str, kind: str = "easy", **changes: Any) -> MetaRecipe:
    recipe = training_recipe(
        name, CompareRecipe(steps=STEPS.get((name, kind), 30) // 2, validations=3, validation_episodes=40)
    )
    recipe = recipe.model_copy(update={"device": "cpu", "precision": "float32", **changes})
    if recipe.method is None:  # a small denoiser
        return recipe.model_copy(update={"denoiser": recipe.denoiser.model_copy(update={"hidden": 32})})
    return recipe


@cache
def trained(name: str, kind: str = "easy") -> Method:
    """A method trained for a few steps on a small bank; the same object for every test."""
    bank = bank_of(kind)
    if not is_learned(name):
        return prepared(make(name), bank)
    recipe = recipe_of(name, kind)
    if find(name) is WDAE:
        return as_method(train(recipe, bank), recipe)
    return train_learned(recipe, bank)


def fresh(name: str, bank: FeatureBank) -> LearnedMethod:
    """A learned method, untrained but prepared."""
    generator = torch.Generator().manual_seed(0)
    method = make(name, dim=bank.dim, n_base=bank.n_base, scale=10.0, generator=generator)
    assert isinstance(method, LearnedMethod)
    method.prepare(base_classes(bank), bank.select(Part.BASE_TRAIN), generator)
    return method
