"""The recognition model of stage 1: backbone, cosine classifier, and a head that tells turns."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from wdae import backbones
from wdae.nn.cosine import CosineClassifier
from wdae.stage1.mixup import Mix


class Seen(NamedTuple):
    """What a recogniser makes of pictures.

    Shapes: ``scores [B, C]``; ``turn_scores [B, 4]``, or None without a head for turns; ``features [B, D]``.
    """

    scores: Tensor
    turn_scores: Tensor | None
    features: Tensor


class RecognitionModel(nn.Module):
    """``score_i = γ · cos(F(x), w_i)``, with the scores of the four turns beside them.

    Shapes: ``[B, 3, S, S]`` pictures to those of :class:`Seen`.
    """

    def __init__(
        self,
        backbone: backbones.Backbone,
        n_classes: int,
        *,
        scale: float = 10.0,
        tells_turns: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = CosineClassifier(n_classes, backbone.feature_dim, scale, generator=generator)
        self.turn_head = nn.Linear(backbone.feature_dim, 4) if tells_turns else None

    def forward(self, images: Tensor, mix: Mix | None = None) -> Seen:
        """Class and turn scores and the features, mixed at ``mix.layer`` where a mix is given."""
        hidden = images if mix is None or mix.layer != 0 else mix(images)
        for number, stage in enumerate(self.backbone.stages, start=1):
            hidden = stage(hidden)
            if mix is not None and mix.layer == number:
                hidden = mix(hidden)
        features = self.backbone.pooled(hidden).float()
        with torch.autocast(features.device.type, enabled=False):
            turns = None if self.turn_head is None else self.turn_head(features)
            return Seen(self.classifier(features), turns, features)

    def channels_last(self) -> Self:
        """The same model with its convolutions' weights laid out as tensor cores like them."""
        return self.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def compile_stages(self, mode: str) -> None:
        """Compile each stage in place: names of parameters stay, and mixing between stages stays free.

        Shapes are fixed during training, so that one compilation a stage is all there is.
        """
        for stage in self.backbone.stages:
            stage.compile(mode=mode, dynamic=False)


def build_recognition_model(
    name: str,
    options: dict[str, Any],
    n_classes: int,
    *,
    seed: int,
    scale: float = 10.0,
    tells_turns: bool = False,
) -> RecognitionModel:
    """A new model whose initial weights depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = backbones.build(name, **options)
        return RecognitionModel(backbone, n_classes, scale=scale, tells_turns=tells_turns)
