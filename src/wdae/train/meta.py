"""Stage 2: train the denoiser on episodes of fake novel classes, from stored features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.bank import FeatureBank, Part
from wdae.device import pick_device, pick_dtype
from wdae.episodes import Episodes, EpisodeSampler, EpisodeSpec
from wdae.errors import EpisodeError, RunError
from wdae.evaluation.protocol import base_classes, few_way
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.randomness import derive_seed
from wdae.train.checkpoint import (
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
    section,
)
from wdae.train.learner import Learner, StepLosses, gather_batch
from wdae.train.meta_config import MetaRecipe, TrainingConfig

Log = Callable[[dict[str, Any]], None]
_DRAW_AHEAD = 1024  # episodes whose indices are drawn at once


@dataclass
class Progress:
    """Where training stands: all a checkpoint needs beside the tensors."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    stale: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step.

    >>> [round(learning_rate(TrainingConfig(steps=10, milestones=(0.5,)), s), 4) for s in (0, 4, 5, 9)]
    [0.01, 0.01, 0.001, 0.001]
    """
    share = step / config.steps
    if config.schedule == "step":
        return config.learning_rate * config.decay ** sum(share >= m for m in config.milestones)
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * share)) / 2
    return config.learning_rate


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
    )
    method.name = recipe.name  # type: ignore[misc]
    return method


def train(
    recipe: MetaRecipe,
    bank: FeatureBank,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    log: Log | None = None,
    told: Callable[..., None] | None = None,
) -> Learner:
    """Train a denoiser on a bank's base classes.

    The same recipe and bank give the same weights, bit for bit on a CPU, whether or not training was
    interrupted: each step's episodes, noise and dropout follow from the seed and the step's number.

    Args:
        recipe: everything that matters.
        bank: base-train images to learn from; validation classes to choose on, if it has them.
        checkpoint: where to keep the state of training, every ``validate_every`` steps and on Ctrl-C.
        resume: go on from that checkpoint.
        log: called with each line of metrics.
        told: called with the number of episodes done and live figures.

    Returns:
        The learner with the weights of the best validation (or the last; see the recipe).
    """
    config, device = recipe.training, pick_device(recipe.device)
    dtype = pick_dtype(recipe.precision, device)
    base = base_classes(bank, device)
    pool = bank.select(Part.BASE_TRAIN, device=device)
    spec = EpisodeSpec(
        config.n_fake, config.shots, config.queries_per_novel, config.base_queries, config.unequal_shots
    )
    sampler = EpisodeSampler(pool, spec, derive_seed(recipe.seed, "training episodes"), fake=True)
    if config.keep == "best" and not bank.has(Part.VALIDATION):
        raise EpisodeError(
            "the best weights are chosen on validation classes, and the bank has none; "
            "set training.keep to last"
        )
    learner = build_learner(recipe, bank.dim, base.scale).to(device)
    optimiser = torch.optim.SGD(
        learner.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )
    progress, kept = Progress(), {k: v.clone() for k, v in learner.state_dict().items()}
    if resume:
        if checkpoint is None or not checkpoint.exists():
            raise RunError(f"nothing to resume: there is no checkpoint at {checkpoint}")
        progress, kept = _restore(checkpoint, recipe, learner, optimiser)
    forward: Callable[..., StepLosses] = learner
    if recipe.compile if recipe.compile is not None else device.type == "cuda":
        forward = torch.compile(learner, dynamic=False)
    batches = _batches(sampler, config, progress.step)
    weights = unit(base.weights)
    generator = torch.Generator(device) if forward is learner else None
    sums = torch.zeros(4, device=device)

    def keep_state() -> None:
        if checkpoint is not None:
            _save(checkpoint, recipe, learner, optimiser, progress, kept)

    learner.train()
    try:
        while progress.step < config.steps:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(config, progress.step)
            _reseed(generator, derive_seed(recipe.seed, "step", progress.step), device)
            batch = gather_batch(pool, weights, next(batches), equal_shots=len(config.shots) == 1)
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                losses = forward(batch, generator)
            optimiser.zero_grad(set_to_none=True)
            losses.total.backward()
            optimiser.step()
            progress.step += 1
            with torch.no_grad():
                sums += torch.stack(
                    [losses.total, losses.reconstruction, losses.classification, losses.accuracy]
                ).detach()
            if told is not None:
                told(config.episodes_per_step)
            if progress.step % config.validate_every == 0 or progress.step == config.steps:
                line = _line(progress, sums, config)
                sums.zero_()
                if bank.has(Part.VALIDATION):
                    line |= _validate(learner, recipe, bank, device)
                    if line["validation"] > progress.best:
                        progress.best, progress.best_step, progress.stale = (
                            line["validation"],
                            progress.step,
                            0,
                        )
                        if config.keep == "best":
                            kept = {k: v.clone() for k, v in learner.state_dict().items()}
                    else:
                        progress.stale += 1
                    learner.train()
                progress.history.append(line)
                if told is not None:
                    told(0, loss=line["loss"], accuracy=line["accuracy"])
                if log is not None:
                    log(line)
                keep_state()
                if config.patience is not None and progress.stale >= config.patience:
                    break
    except KeyboardInterrupt:
        keep_state()
        raise
    if config.keep == "best":
        learner.load_state_dict(kept)
    return learner.eval()


def _batches(sampler: EpisodeSampler, config: TrainingConfig, step: int) -> Iterator[Episodes]:
    """Episodes of step after step; indices are drawn well ahead, which costs less than step by step."""
    size = config.episodes_per_step
    ahead = max(1, _DRAW_AHEAD // size)
    while True:
        drawn = sampler.draw(step * size, ahead * size)
        for i in range(ahead):
            yield drawn[i * size : (i + 1) * size]
        step += ahead


def _reseed(generator: torch.Generator | None, seed: int, device: torch.device) -> None:
    """Noise and dropout of a step depend on the step alone, so a resumed run draws the same."""
    if generator is not None:
        generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.cuda.manual_seed(seed)  # compiled code draws from the device's default generator
    else:
        torch.default_generator.manual_seed(seed)


def _line(progress: Progress, sums: Tensor, config: TrainingConfig) -> dict[str, Any]:
    since = progress.history[-1]["step"] if progress.history else 0
    total, reconstruction, classification, accuracy = (sums / (progress.step - since)).tolist()
    return {
        "step": progress.step,
        "episodes": progress.step * config.episodes_per_step,
        "loss": total,
        "reconstruction": reconstruction,
        "classification": classification,
        "accuracy": accuracy,
        "learning_rate": learning_rate(config, progress.step - 1),
    }


def _validate(
    learner: Learner, recipe: MetaRecipe, bank: FeatureBank, device: torch.device
) -> dict[str, float]:
    """Novel accuracy on validation classes, at full step, for the smallest number of shots trained on."""
    n_shot = min(recipe.training.shots)
    n_way = min(recipe.evaluation.ways, len(bank.classes_of(Part.VALIDATION)))
    result = few_way(
        as_method(learner, recipe, {n_shot: 1.0}),
        bank,
        n_shot,
        n_way=n_way,
        n_query=recipe.evaluation.queries,
        n_episodes=recipe.training.validation_episodes,
        seed=derive_seed(recipe.seed, "validation"),
        joint=False,
        part=Part.VALIDATION,
        device=device,
    )
    return {"validation": result.metrics["novel"].mean, "validation_ci95": result.metrics["novel"].ci95}


def _save(
    path: Path,
    recipe: MetaRecipe,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    kept: dict[str, Tensor],
) -> None:
    tensors = {
        **section("learner", learner.state_dict()),
        **section("kept", kept),
        **section("optimiser", optimiser_tensors(optimiser)),
    }
    save_checkpoint(path, tensors, {"progress": vars(progress), "recipe": _identity(recipe)})


def _restore(
    path: Path, recipe: MetaRecipe, learner: Learner, optimiser: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    saved = load_checkpoint(path)
    if saved.state["recipe"] != _identity(recipe):
        raise RunError(f"{path} was made with another recipe; resume with the recipe the run began with")
    device = next(learner.parameters()).device
    parts: dict[str, dict[str, Tensor]] = {"learner": {}, "kept": {}, "optimiser": {}}
    for name, tensor in saved.tensors.items():
        group, _, key = name.partition("/")
        parts[group][key] = tensor
    learner.load_state_dict(parts["learner"])
    restore_optimiser(optimiser, parts["optimiser"])
    kept = {k: v.to(device).clone() for k, v in parts["kept"].items()}
    return Progress(**saved.state["progress"]), kept


def _identity(recipe: MetaRecipe) -> dict[str, Any]:
    """What two recipes must share for one to go on where the other stopped."""
    data: dict[str, Any] = recipe.model_dump(mode="json")
    return {key: data[key] for key in ("seed", "denoiser", "training")}
