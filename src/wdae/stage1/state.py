"""What changes while stage 1 trains: weights, optimiser, learning rate, average; saved and restored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wdae.errors import ModelError, RecipeError
from wdae.stage1.averaging import Average
from wdae.stage1.config import ScheduleConfig, Stage1Config
from wdae.stage1.model_file import Stage1Model
from wdae.stage1.recognition_model import RecognitionModel, build_recognition_model
from wdae.storage.checkpoint import (
    StateRecord,
    load_checkpoint,
    optimiser_tensors,
    restore_module,
    restore_optimiser,
    save_checkpoint,
)
from wdae.storage.records import Count

# A resumed run may differ in these keys: they do not change what is learned.
_FREE = {"compile", "log_every", "checkpoint_every", "keep", "data.path", "data.cache_dir", "start"}


def rate_share(schedule: ScheduleConfig, progress: float) -> float:
    """The share of the full learning rate after ``progress`` (0 to 1) of training.

    Warm restarts are those of Loshchilov and Hutter, ICLR 2017, https://arxiv.org/abs/1608.03983.

    >>> step = ScheduleConfig(drops=(0.5, 0.75), warm_up=0.1)
    >>> [round(rate_share(step, p), 6) for p in (0.05, 0.1, 0.49, 0.5, 0.8)]
    [0.5, 1.0, 1.0, 0.1, 0.01]
    >>> linear = ScheduleConfig(kind="linear", hold=0.5, final=0.1)
    >>> [round(rate_share(linear, p), 6) for p in (0.25, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.55, 0.1]
    >>> restarts = ScheduleConfig(kind="cosine", cycles=2, peak=0.9)
    >>> [round(rate_share(restarts, p), 6) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [1.0, 0.5, 0.9, 0.45, 0.0]
    """
    if progress < schedule.warm_up:
        return progress / schedule.warm_up
    if schedule.kind == "step":
        return schedule.factor ** sum(progress >= drop for drop in schedule.drops)
    begin = max(schedule.hold, schedule.warm_up)
    fallen = min(1.0, max(0.0, (progress - begin) / (1.0 - begin)))
    cycle = min(int(fallen * schedule.cycles), schedule.cycles - 1)
    fallen = fallen * schedule.cycles - cycle
    left = 1.0 - fallen if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * fallen))
    return (schedule.final + (1.0 - schedule.final) * left) * schedule.peak**cycle


class _State(StateRecord):
    """The state of a checkpoint of stage 1."""

    step: Count
    total_steps: Count
    best: dict[str, float]
    average_updates: Count
    recipe: Stage1Config


class Stage1State:
    """Model, optimiser, average, the number of steps done, and the best validation so far."""

    def __init__(self, config: Stage1Config, n_classes: int, total_steps: int, device: torch.device) -> None:
        model = build_recognition_model(
            config.backbone,
            config.backbone_options,
            n_classes,
            seed=config.seed,
            scale=config.scale,
            rotations=config.rotation is not None,
        )
        self.model: RecognitionModel = model.to(device).channels_last()
        self.config, self.total_steps = config, total_steps
        self.step = 0
        self.best: dict[str, float] = {}

    def prepare(self) -> None:
        """Make optimiser and average, once the model's parameters are the final objects."""
        averaging = self.config.averaging
        self.optimiser = make_optimiser(self.model, self.config)
        self.average = None if averaging is None else Average(self.model, averaging, self.total_steps)

    def set_rate(self) -> float:
        """Give the optimiser the learning rate of the coming step."""
        share = rate_share(self.config.schedule, self.step / self.total_steps)
        rate = self.config.optimiser.learning_rate * share
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        return rate

    @property
    def evaluated(self) -> RecognitionModel:
        """The model to validate and save: the average, once it has begun."""
        return self.average.module if self.average is not None and self.average.begun else self.model

    def save(self, path: Path) -> None:
        """Write a checkpoint from which :meth:`restore` continues exactly."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimiser.{k}": v for k, v in optimiser_tensors(self.optimiser).items()}
        if self.average is not None:
            tensors |= {f"average.{name}": v for name, v in self.average.module.state_dict().items()}
        state = {
            "step": self.step,
            "total_steps": self.total_steps,
            "best": self.best,
            "average_updates": 0 if self.average is None else self.average.updates,
            "recipe": self.config.model_dump(mode="json"),
        }
        save_checkpoint(path, tensors, state)

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint of the same recipe."""
        checkpoint = load_checkpoint(path)
        state = checkpoint.read(_State)
        then = state.recipe  # keys that are newer than it have their defaults
        differing = differences(then.model_dump(mode="json"), self.config.model_dump(mode="json"))
        if differing or state.total_steps != self.total_steps:
            what = ", ".join(differing) or "the number of training pictures"
            raise RecipeError(f"{path} was written with another recipe; differing: {what}")
        restore_module(self.model, _under("model.", checkpoint.tensors), path)
        restore_optimiser(self.optimiser, _under("optimiser.", checkpoint.tensors))
        if self.average is not None:
            restore_module(self.average.module, _under("average.", checkpoint.tensors), path)
            self.average.updates = state.average_updates
        self.step, self.best = state.step, dict(state.best)


def start_from(model: RecognitionModel, class_names: Sequence[str], trained: Stage1Model) -> None:
    """Copy a trained model's weights: backbone, scale, and the rows of classes known to both."""
    theirs = trained.network
    try:
        model.backbone.load_state_dict(theirs.backbone.state_dict())
    except RuntimeError as error:
        raise ModelError(
            f"the model to start from has backbone {trained.card['backbone']!r}, which does not fit: {error}"
        ) from error
    rows = {name: row for row, name in enumerate(trained.class_names)}
    with torch.no_grad():
        model.classifier.scale.copy_(theirs.classifier.scale)
        for row, name in enumerate(class_names):
            if name in rows:
                model.classifier.weight[row] = theirs.classifier.weight[rows[name]]


def make_optimiser(model: nn.Module, config: Stage1Config) -> torch.optim.SGD:
    """SGD with Nesterov momentum, in one kernel where the device has one."""
    options = config.optimiser
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.SGD(
        [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": options.weight_decay if options.decay_norm_and_bias else 0.0},
        ],
        lr=options.learning_rate,
        momentum=options.momentum,
        nesterov=options.momentum > 0,
        fused=True if on_gpu else None,
    )


def differences(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys in which two recipes differ, those that do not matter left out."""
    found: list[str] = []
    for key in sorted({*then, *now}):
        name = f"{prefix}{key}"
        old, new = then.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{name}.")
        elif old != new and name not in _FREE:
            found.append(name)
    return found


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
