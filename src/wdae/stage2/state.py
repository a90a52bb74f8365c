"""What changes while stage 2 trains: optimiser, learning rate, progress; saved and restored."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wdae.errors import RunError
from wdae.stage2.config import MetaRecipe, TrainingConfig
from wdae.storage.checkpoint import (
    StateRecord,
    load_checkpoint,
    optimiser_tensors,
    restore_module,
    restore_optimiser,
    save_checkpoint,
    section,
)
from wdae.storage.records import Count, Info


class _TrainingProgress(StateRecord):
    step: Count
    best: float
    best_step: Count
    stale: Count
    sums: list[float]
    history: list[dict[str, float]]


class _TrainingState(StateRecord):
    """The state of a checkpoint of stage 2."""

    progress: _TrainingProgress
    recipe: Info


@dataclass
class TrainingProgress:
    """The plain numbers of a checkpoint."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    stale: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)  # of the losses since the last line
    history: list[dict[str, float]] = field(default_factory=list)

    def finished(self, config: TrainingConfig) -> bool:
        """All steps done, or stopped early; a run resumed after that does not continue."""
        stopped = config.patience is not None and self.stale >= config.patience
        return stopped or self.step >= config.steps


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


def build_optimiser(
    learner: nn.Module, config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters that are learned."""
    parameters = [p for p in learner.parameters() if p.requires_grad]
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    options["fused"] = device.type in ("cpu", "cuda")
    if config.optimiser == "adam":
        return torch.optim.AdamW(parameters, **options)
    return torch.optim.SGD(parameters, momentum=config.momentum, nesterov=config.momentum > 0, **options)


def save_state(
    path: Path,
    recipe: MetaRecipe,
    learner: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: TrainingProgress,
    best: dict[str, Tensor],
) -> None:
    """Write learner, optimiser, progress and the best weights so far."""
    tensors = {
        **section("learner", learner.state_dict()),
        **section("kept", best),
        **section("optimiser", optimiser_tensors(optimiser)),
    }
    save_checkpoint(path, tensors, {"progress": vars(progress), "recipe": identity(recipe)})


def restore_state(
    path: Path, recipe: MetaRecipe, learner: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[TrainingProgress, dict[str, Tensor]]:
    """Restore learner and optimiser from a checkpoint of the same recipe; returns progress, best weights."""
    saved = load_checkpoint(path)
    state = saved.read(_TrainingState)
    if state.recipe != identity(recipe):
        raise RunError(f"{path} was made with another recipe; resume with the recipe the run began with")
    device = next(learner.parameters()).device
    restore_module(learner, saved.section("learner"), path)
    restore_optimiser(optimiser, saved.section("optimiser"))
    best = {name: tensor.to(device).clone() for name, tensor in saved.section("kept").items()}
    return TrainingProgress(**state.progress.model_dump()), best


def steps_done(checkpoint: Path | None) -> int:
    """The steps behind a checkpoint; 0 where there is none."""
    if checkpoint is None or not checkpoint.is_file():
        return 0
    return load_checkpoint(checkpoint).read(_TrainingState).progress.step


def identity(recipe: MetaRecipe) -> dict[str, Any]:
    """What two recipes must share for one to resume the other, on one bank and in one space."""
    data: dict[str, Any] = recipe.model_dump(mode="json")
    method = ("precision", "denoiser") if recipe.method is None else ("method", "options")
    if recipe.training.groups == 1:  # as it was before there were groups
        del data["training"]["groups"]
    return {key: data[key] for key in ("seed", *method, "training")}
