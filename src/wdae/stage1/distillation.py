"""Knowledge distillation from trained models of the same classes.

A model taught by a model of its own kind is born-again: Furlanello et al., ICML 2018,
https://arxiv.org/abs/1805.04770. The divergence is that of Hinton et al., 2015, https://arxiv.org/abs/1503.02531;
the similarity of pairs is taught as by Tung and Mori, ICCV 2019, https://arxiv.org/abs/1907.09682.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wdae.config.augment import AugmentConfig
from wdae.errors import ModelError
from wdae.nn.cosine import unit
from wdae.stage1.mixup import Mix
from wdae.stage1.model_file import load_model


class TeacherTargets(NamedTuple):
    """The teachers' output for a batch, which the student learns to match.

    Shapes: ``scores [B, C]``, the mean over teachers; ``features [B, ΣD]`` of unit length, side by side, so
    that the cosine of two rows is the mean of the teachers' cosines.
    """

    scores: Tensor
    features: Tensor


class Teachers:
    """Frozen models whose output a new model learns to match.

    Args:
        folders: of the models.
        augment: how the new model's pictures are augmented and normalised; the teachers see the same ones.
        class_names: those that the new model is trained on.
        held_out: how many images of each are held out, and the seed that draws them.
        drawn: which ones these are (:func:`wdae.data.image_set.held_out_digests`).
    """

    def __init__(
        self,
        folders: Sequence[Path],
        augment: AugmentConfig,
        class_names: tuple[str, ...],
        held_out: tuple[int, int],
        device: torch.device,
        drawn: Mapping[str, str] | None = None,
    ) -> None:
        self.networks = []
        ours = {"mean": list(augment.mean), "std": list(augment.std)}
        for path in folders:
            model = load_model(path, device)
            if model.class_names != class_names:
                raise ModelError(
                    f"the teacher in {path} knows {len(model.class_names)} classes, not the "
                    f"{len(class_names)} that are trained on here; give one trained on the same classes"
                )
            model.refuse_leak(path, *held_out)
            if model.held_out == held_out:
                model.refuse_other_pictures(path, drawn or {})
            if theirs := {key: model.card[key] for key in ours if model.card[key] != ours[key]}:
                raise ModelError(
                    f"the teacher in {path} knows pictures normalised by other values: {theirs}; "
                    f"here they are {ours}"
                )
            self.networks.append(model.network.channels_last().requires_grad_(False))

    def compile_stages(self, mode: str) -> None:
        """Compile the teachers as the student is compiled."""
        for network in self.networks:
            network.compile_stages(mode)

    @torch.no_grad()
    def targets(self, images: Tensor) -> TeacherTargets:
        """Their output for pictures ``[B, 3, S, S]``, unmixed."""
        outputs = [network(images) for network in self.networks]
        scores = torch.stack([output.scores for output in outputs]).mean(dim=0)
        return TeacherTargets(scores, unit(torch.cat([unit(output.features) for output in outputs], dim=1)))


def teacher_divergence(scores: Tensor, teacher: Tensor, mix: Mix | None, temperature: float) -> Tensor:
    """``T² KL(teacher / T || scores / T)``; for mixed rows the teacher's probabilities are mixed alike."""
    target = (teacher / temperature).softmax(dim=1)
    if mix is not None:
        target = torch.lerp(target[mix.partner[: len(target)]], target, mix.share)
    log_scores = (scores / temperature).log_softmax(dim=1)
    return temperature**2 * F.kl_div(log_scores, target, reduction="batchmean")


def similarity_error(features: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the student's and the teachers' cosines, over all pairs of pictures.

    It teaches the geometry in which class means are compared, beyond the classes trained on.
    Shapes: ``features [B, D]``, ``teacher [B, ΣD]`` of unit length.
    """
    own = unit(features)
    return F.mse_loss(own @ own.T, teacher @ teacher.T)
