"""The loss of stage 1, and its running means: classification, rotations, mixup and teachers."""

from __future__ import annotations

import math
import statistics
import time

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.errors import RunError
from wdae.runtime.distributed import Team
from wdae.stage1.batches import PictureBatch
from wdae.stage1.config import Stage1Config
from wdae.stage1.distillation import TeacherTargets, similarity_error, teacher_divergence
from wdae.stage1.mixup import Mix, mixed_cross_entropy
from wdae.stage1.recognition_model import Recognition

# Names in metrics.jsonl; "turn" there is a rotation.
NAMES = ("loss", "class_loss", "turn_loss", "teacher_loss", "accuracy", "turn_accuracy")


def n_classified(config: Stage1Config, batch: PictureBatch) -> int:
    """How many rows of a batch, from the first, count for classification."""
    every = config.rotation is not None and config.rotation.classify_all_turns
    return len(batch.labels) if every else batch.n_upright


def objective(
    config: Stage1Config,
    output: Recognition,
    batch: PictureBatch,
    mix: Mix | None,
    targets: TeacherTargets | None,
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and ``[6]`` detached values to log, in the order of ``NAMES``.

    ``output`` is of all ``R B`` rows, ``targets`` of the classified ones.
    """
    rotation, distillation = config.rotation, config.distillation
    rows, upright = n_classified(config, batch), batch.n_upright
    scores, labels = output.scores[:rows], batch.labels[:rows]
    class_loss = mixed_cross_entropy(scores, labels, mix, config.label_smoothing)
    rotation_loss = teacher_loss = rotation_accuracy = torch.zeros((), device=scores.device)
    loss = class_loss
    if distillation is not None and targets is not None:
        teacher_loss = teacher_divergence(scores, targets.scores, mix, distillation.temperature)
        if distillation.likeness and mix is None:
            error = similarity_error(output.features[:upright], targets.features[:upright])
            teacher_loss = teacher_loss + distillation.likeness * error
        loss = (1.0 - distillation.weight) * class_loss + distillation.weight * teacher_loss
    if rotation is not None and output.rotation_scores is not None:
        rotation_loss = F.cross_entropy(output.rotation_scores, batch.rotations)
        rotation_accuracy = (output.rotation_scores.argmax(dim=1) == batch.rotations).float().mean()
        loss = loss + rotation.weight * rotation_loss
    right = scores[:upright].argmax(dim=1) == labels[:upright]
    values = (loss, class_loss, rotation_loss, teacher_loss, right.float().mean(), rotation_accuracy)
    return loss, torch.stack([value.detach() for value in values])


class Meter:
    """Means of the losses, and rates; the host waits for the device only when they are read.

    Args:
        images_per_step: pictures through the network in a step, rotated copies and all processes included.
        flops: floating-point operations of training on one picture.
    """

    def __init__(self, device: torch.device, images_per_step: int, flops: int, team: Team) -> None:
        self.images_per_step, self.flops, self.team = images_per_step, flops, team
        self.sums = torch.zeros(len(NAMES), device=device)
        self.pending = self.epoch_steps = 0
        self.epoch_rates: list[float] = []
        self.since = self.epoch_since = time.monotonic()

    def add(self, values: Tensor) -> None:
        """Add the values of one step."""
        self.sums += values
        self.pending += 1
        self.epoch_steps += 1

    def read(self) -> dict[str, float]:
        """Means since the last reading, and the rate; refuses a loss that is not a number."""
        means = (self.team.mean(self.sums) / max(self.pending, 1)).tolist()
        now = time.monotonic()
        rate = self.pending * self.images_per_step / max(now - self.since, 1e-9)
        self.pending, self.since = 0, now
        self.sums.zero_()
        line = dict(zip(NAMES, means, strict=True))
        if not math.isfinite(line["loss"]):
            raise RunError(
                "the loss is no longer a number; lower optimiser.learning_rate or add schedule.warm_up"
            )
        return {**line, "images_per_s": rate, "tflops": rate * self.flops / 1e12}

    def end_epoch(self) -> None:
        """Note the rate over the epoch (after :meth:`read`, which waited for the device)."""
        now = time.monotonic()
        self.epoch_rates.append(self.epoch_steps * self.images_per_step / max(now - self.epoch_since, 1e-9))
        self.epoch_steps, self.epoch_since = 0, now

    def skip_pause(self) -> None:
        """Leave the time since the last reading (validation, writing) out of the rates."""
        self.since = self.epoch_since = time.monotonic()

    @property
    def images_per_s(self) -> float:
        """The median rate of whole epochs; the first, which compiles, only where there is no other."""
        rates = self.epoch_rates[1:] or self.epoch_rates
        return statistics.median(rates) if rates else 0.0

    @property
    def tflops(self) -> float:
        """The same in 10¹² floating-point operations a second."""
        return self.images_per_s * self.flops / 1e12
