"""A model's present state as one torch module: what ONNX and TorchScript files are made from."""

from __future__ import annotations

import json
from typing import Literal

import torch
from torch import Tensor, nn

from wdae.backbones.preprocessing import PREPROCESSING
from wdae.classifier.head import Head
from wdae.classifier.model import Model
from wdae.errors import ModelError
from wdae.methods.records import RISKS

Part = Literal["auto", "whole", "squares", "classifier"]


class ExportedClassifier(nn.Module):
    """Features ``[B, D]`` to scores and probabilities ``[B, C]``."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.matrix = nn.Buffer(head.matrix.clone())
        self.offsets = nn.Buffer(head.offsets.clone())
        space = head.space
        self.power = 1.0 if space is None else space.power
        self.centre = None if space is None else nn.Buffer(space.centre.clone())
        whiten = None if space is None else space.whiten
        self.whiten = None if whiten is None else nn.Buffer(whiten.clone())

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and their softmax."""
        if self.power != 1.0:
            features = features.sign() * features.abs().pow(self.power)
        features = _unit(features)
        if self.centre is not None:
            features = features - self.centre
            features = _unit(features if self.whiten is None else features @ self.whiten)
        scores = torch.addmm(self.offsets, features, self.matrix.T)
        return scores, scores.softmax(1)


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)


class ExportedModel(nn.Module):
    """Pictures ``[B, 3, S, S]``, RGB from 0 to 1, to scores and probabilities ``[B, C]``."""

    def __init__(self, model: Model, head: Head) -> None:
        super().__init__()
        if model.backbone is None:
            raise ModelError("the model has no backbone to export; export the classifier alone")
        rule = model.backbone.preprocessing
        self.mean, self.std = (
            nn.Buffer(torch.tensor([value / rule.value_range for value in values]).view(1, 3, 1, 1))
            for values in (rule.mean, rule.std)
        )
        self.backbone = model.backbone.network
        self.classifier = ExportedClassifier(head)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and their softmax."""
        scores, probabilities = self.classifier(self.backbone((images - self.mean) / self.std))
        return scores, probabilities


def export_module(model: Model, head: Head, part: Part = "auto") -> tuple[nn.Module, str, Tensor]:
    """The module, the name of its input, and an input of two items to trace it with.

    Args:
        head: the model's classifier for the question that the file is to answer.
        part: ``whole`` starts at pictures, ``classifier`` at features; ``auto``: at pictures if it can.
    """
    if part in ("auto", "squares"):
        part = "whole" if model.backbone is not None else "classifier"
    generator = torch.Generator().manual_seed(0)
    if part == "classifier":
        features = torch.randn(2, model.base.dim, generator=generator)
        return ExportedClassifier(head).eval(), "features", features
    module = ExportedModel(model, head).eval()
    assert model.backbone is not None
    side = model.backbone.image_size
    return module, "images", torch.rand(2, 3, side, side, generator=generator)


def metadata(head: Head, model: Model) -> dict[str, str]:
    """What travels with every export; ``labels`` is a JSON list in the order of the scores.

    ``sets`` says what is needed for a set of classes that holds the true one: by coverage, the least
    probability of a base class and that of each added class. It is left out where the scores are not those
    that it was found for: of some classes alone, or with another share of new pictures expected.
    """
    labels = json.dumps(list(head.names), ensure_ascii=False)
    facts = {"format": "wdae-export 1", "labels": labels, "n_base": str(head.n_base)}
    own = model.base.calibration
    tried = any(len(pair) == 2 for pair in own.sets.values()) or (own.sets and not len(head.shots))
    usual = head.names == model.names and torch.allclose(head.prior, own.prior(head.n_base, head.shots))
    if tried and usual:
        least = {f"{1 - risk:.2f}": own.least(1 - risk, head.shots) for risk in RISKS}
        facts["sets"] = json.dumps({k: {"base": b, "added": a.tolist()} for k, (b, a) in least.items()})
    if (backbone := model.backbone) is not None:
        facts[PREPROCESSING] = json.dumps(backbone.preprocessing.model_dump(mode="json"))
    return facts
