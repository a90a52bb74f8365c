"""From a recipe: the learner it asks for, freshly initialised, its optimiser, and the method it becomes."""

from __future__ import annotations

import torch
from torch import nn

from wdae.bank import FeatureBank
from wdae.errors import RecipeError
from wdae.methods import WDAE, BaseClasses, LearnedMethod, find, is_learned, make
from wdae.nn.denoiser import Denoiser
from wdae.parts import Part
from wdae.runtime.device import pick_dtype
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe, TrainingConfig
from wdae.stage2.learner import Learner


def build_learner(recipe: MetaRecipe, dim: int, scale: float) -> Learner:
    """The learner of a recipe, freshly initialised from its seed."""
    generator = torch.Generator().manual_seed(derive_seed(recipe.seed, "denoiser"))
    d, t = recipe.denoiser, recipe.training
    denoiser = Denoiser(dim, d.hidden, d.layers, d.dropout, d.kind, generator)
    return Learner(
        denoiser,
        scale,
        t.noise,
        t.noisy_targets,
        t.classification_loss,
        t.reconstruction_loss,
        d.neighbours,
        d.inverse_temperature,
    )


def as_method(learner: Learner, recipe: MetaRecipe, steps: dict[int, float] | None = None) -> WDAE:
    """The method a learner has become."""
    device = next(learner.parameters()).device
    method = WDAE(
        learner.denoiser,
        learner.scale.item(),
        steps,
        recipe.evaluation.refinements,
        recipe.denoiser.neighbours,
        recipe.denoiser.inverse_temperature,
        pick_dtype(recipe.precision, device),
        recipe.memory_mb,
        refine_base=recipe.evaluation.refine_base,
    )
    method.name = recipe.name
    return method


def build_method(recipe: MetaRecipe, bank: FeatureBank, base: BaseClasses) -> LearnedMethod:
    """The method that a recipe names, freshly initialised from its seed, on the CPU."""
    name = recipe.method or ""
    if not (is_learned(name) and issubclass(find(name), LearnedMethod)):
        hint = "set denoiser.kind instead" if name.startswith("wdae") else "it has nothing to train"
        raise RecipeError(f"'method' is for learned methods beside the denoiser, got {name!r}; {hint}")
    generator = torch.Generator().manual_seed(derive_seed(recipe.seed, name))
    sizes = {"dim": bank.dim, "n_base": bank.n_base, "scale": base.scale, "generator": generator}
    method = make(name, **sizes, **recipe.options)
    assert isinstance(method, LearnedMethod)
    method.prepare(bank.select(Part.BASE_TRAIN), generator)
    method.name = recipe.name
    return method


def build_optimiser(
    learner: nn.Module, config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters that are learned."""
    parameters = [p for p in learner.parameters() if p.requires_grad]
    fused = device.type in ("cpu", "cuda")
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimiser == "adam":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=fused)
    return torch.optim.SGD(
        parameters,
        lr=rate,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=decay,
        fused=fused,
    )
