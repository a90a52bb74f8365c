"""Born-again training: trained models of the same classes, one or several, teach a new one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.errors import ModelError
from wdae.nn.cosine import unit
from wdae.stage1.config import VariationConfig
from wdae.stage1.mixup import Mix
from wdae.stage1.model_file import load_model


class Lesson(NamedTuple):
    """What the teachers say of a batch.

    Shapes: ``scores [B, C]``, their mean; ``features [B, ΣD]`` of unit length, side by side, so that the
    cosine of two rows is the mean of the teachers' cosines.
    """

    scores: Tensor
    features: Tensor


class Teachers:
    """Frozen models that the new one is drawn towards.

    Args:
        folders: of the models.
        augment: how the new model's pictures are varied and normalised; they are the teachers' too.
        class_names: those that the new model is trained on.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        augment: VariationConfig,
        class_names: tuple[str, ...],
        device: torch.device,
    ) -> None:
        self.networks = []
        seen = {"mean": list(augment.mean), "std": list(augment.std)}
        for path in folders:
            model = load_model(path, device)
            if model.class_names != class_names:
                raise ModelError(
                    f"the teacher in {path} knows {len(model.class_names)} classes, not the "
                    f"{len(class_names)} that are trained on here; give one trained on the same classes"
                )
            if known := {key: model.card[key] for key in seen if model.card[key] != seen[key]}:
                raise ModelError(
                    f"the teacher in {path} knows pictures normalised by other values: {known}; "
                    f"here they are {seen}"
                )
            self.networks.append(model.network.channels_last().requires_grad_(False))

    def compile_stages(self, mode: str) -> None:
        """Compile the teachers as their pupil is."""
        for network in self.networks:
            network.compile_stages(mode)

    @torch.no_grad()
    def of(self, images: Tensor) -> Lesson:
        """What they say of pictures ``[B, 3, S, S]``, unmixed."""
        seen = [network(images) for network in self.networks]
        scores = torch.stack([one.scores for one in seen]).mean(dim=0)
        return Lesson(scores, unit(torch.cat([unit(one.features) for one in seen], dim=1)))


def teacher_divergence(scores: Tensor, teacher: Tensor, mix: Mix | None, temperature: float) -> Tensor:
    """``T² KL(teacher / T || scores / T)``; for mixed rows the teacher's probabilities are mixed alike."""
    target = (teacher / temperature).softmax(dim=1)
    if mix is not None:
        target = torch.lerp(target[mix.partner[: len(target)]], target, mix.share)
    log_scores = (scores / temperature).log_softmax(dim=1)
    return temperature**2 * F.kl_div(log_scores, target, reduction="batchmean")


def likeness_error(features: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the pupil's and the teachers' cosines, over all pairs of pictures.

    It draws the geometry that class means are compared in, not only the directions of the classes
    trained on. Shapes: ``features [B, D]``, ``teacher [B, ΣD]`` of unit length.
    """
    own = unit(features)
    return F.mse_loss(own @ own.T, teacher @ teacher.T)
