"""Where stage-2 training stands, in a checkpoint and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wdae.errors import RunError
from wdae.stage2.config import MetaRecipe
from wdae.storage.checkpoint import (
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
    section,
)


@dataclass
class Progress:
    """Where training stands: all a checkpoint needs beside the tensors."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    stale: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)  # of the losses since the last line
    history: list[dict[str, float]] = field(default_factory=list)


def save_state(
    path: Path,
    recipe: MetaRecipe,
    learner: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    kept: dict[str, Tensor],
) -> None:
    """Keep learner, optimiser, progress and the weights kept so far."""
    tensors = {
        **section("learner", learner.state_dict()),
        **section("kept", kept),
        **section("optimiser", optimiser_tensors(optimiser)),
    }
    save_checkpoint(path, tensors, {"progress": vars(progress), "recipe": _identity(recipe)})


def restore_state(
    path: Path, recipe: MetaRecipe, learner: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    """Put learner and optimiser back where a checkpoint of the same recipe left them."""
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
    keys = (
        ("seed", "precision", "denoiser", "training")
        if recipe.method is None
        else ("seed", "method", "options", "training")
    )
    return {key: data[key] for key in keys}
