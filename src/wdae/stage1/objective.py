"""The loss of stage 1: classification, with turns, mixing and teachers where the recipe asks for them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.stage1.batches import Batch
from wdae.stage1.config import Stage1Config
from wdae.stage1.distillation import Lesson, likeness_error, teacher_divergence
from wdae.stage1.mixup import Mix
from wdae.stage1.recognition_model import Seen

NAMES = ("loss", "class_loss", "turn_loss", "teacher_loss", "accuracy", "turn_accuracy")


def mixed_cross_entropy(scores: Tensor, labels: Tensor, mix: Mix | None, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy to a row's own label and, where rows are mixed, to its partner's, by their shares."""
    if mix is None:
        return F.cross_entropy(scores, labels, label_smoothing=smoothing)
    partner = mix.partner[: len(scores)]
    own = F.cross_entropy(scores, labels, label_smoothing=smoothing)
    other = F.cross_entropy(scores, labels[partner], label_smoothing=smoothing)
    return mix.share * own + (1.0 - mix.share) * other


def classified(config: Stage1Config, batch: Batch) -> int:
    """How many rows of a batch, from the first, count for classification."""
    every = config.rotation is not None and config.rotation.classify_all_turns
    return len(batch.labels) if every else batch.n_upright


def objective(
    config: Stage1Config,
    seen: Seen,
    batch: Batch,
    mix: Mix | None,
    lesson: Lesson | None,
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and ``[6]`` detached values to log, in the order of ``NAMES``.

    ``seen`` is of all ``T B`` rows, ``lesson`` of the classified ones.
    """
    rotation, distillation = config.rotation, config.distillation
    rows = classified(config, batch)
    scores, labels, turn_scores = seen.scores[:rows], batch.labels[:rows], seen.turn_scores
    class_loss = mixed_cross_entropy(scores, labels, mix, config.label_smoothing)
    turn_loss = teacher_loss = turn_accuracy = torch.zeros((), device=scores.device)
    loss = class_loss
    if distillation is not None and lesson is not None:
        teacher_loss = teacher_divergence(scores, lesson.scores, mix, distillation.temperature)
        if distillation.likeness and mix is None:
            error = likeness_error(seen.features[: batch.n_upright], lesson.features[: batch.n_upright])
            teacher_loss = teacher_loss + distillation.likeness * error
        loss = (1.0 - distillation.weight) * class_loss + distillation.weight * teacher_loss
    if rotation is not None and turn_scores is not None:
        turn_loss = F.cross_entropy(turn_scores, batch.turns)
        turn_accuracy = (turn_scores.argmax(dim=1) == batch.turns).float().mean()
        loss = loss + rotation.weight * turn_loss
    upright = scores[: batch.n_upright].argmax(dim=1) == labels[: batch.n_upright]
    values = (loss, class_loss, turn_loss, teacher_loss, upright.float().mean(), turn_accuracy)
    return loss, torch.stack([value.detach() for value in values])
