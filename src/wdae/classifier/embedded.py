"""What ships inside the package beside the bank: a backbone for pictures, and a model ready to use.

What they are, and how they were made, stands in the model cards beside them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from wdae.backbones.packaged import packaged
from wdae.classifier import picture_backbone
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import embedded_backbone, load_backbone
from wdae.classifier.store import load
from wdae.classifier.summary import MEASURED
from wdae.config.shipped import ASSETS
from wdae.errors import ModelError
from wdae.methods.calibration import Calibration
from wdae.methods.initial_estimate import InitialEstimate
from wdae.nn.cosine import weights_of_linear
from wdae.storage.records import read_json

__all__ = ["READY", "embedded_backbone", "embedded_model", "imagenet_classes", "lite_model"]

LITE_READY = ("lite0",)
"""Backbones of packages that a ready model can be made with: their balance was measured and ships."""
BALANCE = "balance.json"
_IMAGES = 1281  # of a class of ImageNet, on average: how firmly its weight stands when it gets more examples
READY = "ready"
"""The model that is ready to use, inside the backbone's folder."""


def embedded_model() -> Model:
    """A model ready to use: it knows the 64 classes of :func:`embedded_backbone` and takes pictures.

    Add classes to it, and keep it with :func:`wdae.classifier.save`; ``wdae learn -o model`` does the latter.

    >>> model = embedded_model()
    >>> len(model.names), model.added, model.backbone.name
    (64, (), 'embedded')
    """
    folder = picture_backbone.BACKBONE / READY
    if not folder.is_dir():
        raise ModelError("this copy of wdae has no ready model inside; give wdae learn a folder of pictures")
    return load(folder)


def imagenet_classes() -> dict[str, str]:
    """ImageNet's 1,000 classes in the usual order: identifier to readable name.

    >>> classes = imagenet_classes()
    >>> len(classes), classes["n01532829"]
    (1000, 'house finch')
    """
    lines = (ASSETS / "imagenet-1k.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if not line.startswith("#"))


def lite_model(name: str = "lite0") -> Model:
    """A model of ImageNet's 1,000 classes that sees with EfficientNet-Lite, ready to add classes to.

    Its base weights are the network's own classifier, brought into the cosine space; nothing is trained, and
    there is no denoiser, which needs pictures of base classes. Needs the extra ``lite``. The network has seen
    ImageNet: no figure on ImageNet's classes or pictures may be compared with a method's that has not.
    """
    found = packaged(name)
    balance = Calibration.from_json(read_json(ASSETS / name / BALANCE))
    balance = replace(balance, novel_share=None)  # as any model that people ask: base classes first
    classes = imagenet_classes()
    weights = weights_of_linear(found.weight, found.bias, found.mean_feature())
    info = {
        "labels": "text",
        "source": "ImageNet",
        "backbone": name,
        "seen": "ImageNet's 1,000 classes: never compare methods on them with it",
        MEASURED: "MiniImageNet's pictures, 84 pixels enlarged to 224, not on photos as a camera takes them:"
        " there accuracy and probabilities may differ; measure on yours with wdae evaluate",
        "denoiser": "none: it needs pictures of base classes. Added classes keep their initial estimate,"
        f" balanced; with a folder of your own base classes: wdae learn PHOTOS --backbone {name} -o MODEL",
    }
    counts = torch.full((len(classes),), _IMAGES)
    model = Model(
        BaseKnowledge(
            tuple(classes.values()), weights, counts, InitialEstimate(balance), balance.gain, None, info
        )
    )
    model.backbone = load_backbone(name)
    return model
