"""Born-again training: a trained model of the same classes teaches a new one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.errors import ModelError
from wdae.train.mixup import Mix
from wdae.train.model_file import load_model
from wdae.train.stage1_config import DistillationConfig


class Teacher:
    """A frozen model whose scores the new one is drawn towards."""

    def __init__(
        self, config: DistillationConfig, class_names: tuple[str, ...], device: torch.device
    ) -> None:
        model = load_model(config.teacher, device)
        if model.class_names != class_names:
            raise ModelError(
                f"the teacher in {config.teacher} knows {len(model.class_names)} classes, not the "
                f"{len(class_names)} that are trained on here; give one trained on the same classes"
            )
        self.recogniser = model.recogniser.channels_last().requires_grad_(False)

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Class scores ``[B, C]`` of pictures ``[B, 3, S, S]``, unmixed."""
        scores: Tensor = self.recogniser(images)[0]
        return scores


def teacher_divergence(scores: Tensor, teacher: Tensor, mix: Mix | None, temperature: float) -> Tensor:
    """``T² KL(teacher / T || scores / T)``; for mixed rows the teacher's probabilities are mixed alike."""
    target = (teacher / temperature).softmax(dim=1)
    if mix is not None:
        target = torch.lerp(target[mix.partner[: len(target)]], target, mix.share)
    log_scores = (scores / temperature).log_softmax(dim=1)
    return temperature**2 * F.kl_div(log_scores, target, reduction="batchmean")
