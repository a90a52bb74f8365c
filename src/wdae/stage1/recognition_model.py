"""The recognition model of stage 1: backbone, cosine classifier, and a rotation head for self-supervision.

Rotation prediction: Gidaris et al., ICLR 2018, https://arxiv.org/abs/1803.07728; beside few-shot
classification: Gidaris et al., ICCV 2019, https://arxiv.org/abs/1906.05186.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from wdae import backbones
from wdae.nn.cosine import CosineClassifier
from wdae.stage1.mixup import Mix

_MOST_COMPILED = 64


class Recognition(NamedTuple):
    """The output of a recognition model.

    Shapes: ``scores [B, C]``; ``rotation_scores [B, 4]``, or None without a rotation head;
    ``features [B, D]``.
    """

    scores: Tensor
    rotation_scores: Tensor | None
    features: Tensor


class RecognitionModel(nn.Module):
    """``score_i = γ · cos(F(x), w_i)``, with the scores of the four rotations beside them.

    Shapes: pictures ``[B, 3, S, S]`` to those of :class:`Recognition`.
    """

    def __init__(
        self, backbone: backbones.Backbone, n_classes: int, *, scale: float = 10.0, rotations: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = CosineClassifier(n_classes, backbone.feature_dim, scale)
        # The rotation head; checkpoints know it by this name.
        self.turn_head = nn.Linear(backbone.feature_dim, 4) if rotations else None

    def forward(self, images: Tensor, mix: Mix | None = None) -> Recognition:
        """Scores and features; rows are mixed at ``mix.layer`` where a mix is given."""
        hidden = images if mix is None or mix.layer != 0 else mix(images)
        for number, stage in enumerate(self.backbone.stages, start=1):
            hidden = stage(hidden)
            if mix is not None and mix.layer == number:
                hidden = mix(hidden)
        features = self.backbone.pooled(hidden).float()
        with torch.autocast(features.device.type, enabled=False):
            rotation_scores = None if self.turn_head is None else self.turn_head(features)
            return Recognition(self.classifier(features), rotation_scores, features)

    def channels_last(self) -> Self:
        """The same model with its convolutions' weights in channels-last layout, for tensor cores."""
        return self.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def compile_stages(self, mode: str) -> None:
        """Compile each stage in place: names of parameters stay, and rows can be mixed between stages.

        Shapes are fixed during training, so each stage is compiled once.
        """
        import torch._dynamo.config as limits

        # Stages of one kind, of a model and of its teachers, share a count of how often they were compiled;
        # those beyond it would quietly run uncompiled.
        limits.recompile_limit = max(limits.recompile_limit, _MOST_COMPILED)
        for stage in self.backbone.stages:
            stage.compile(mode=mode, dynamic=False)


def build_recognition_model(
    name: str,
    options: dict[str, Any],
    n_classes: int,
    *,
    seed: int,
    scale: float = 10.0,
    rotations: bool = False,
) -> RecognitionModel:
    """A new model whose initial weights depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = backbones.build(name, **options)
        return RecognitionModel(backbone, n_classes, scale=scale, rotations=rotations)
