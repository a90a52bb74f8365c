"""Learn a model from what people have: pictures in folders, a file of features, or a feature bank."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wdae.bank import FeatureBank, Part
from wdae.data import ImageSet, hold_out
from wdae.errors import DataError, WdaeError
from wdae.model.inputs import is_feature_file
from wdae.model.learn_config import LearnConfig
from wdae.model.learning import FEWEST_CLASSES, held_out_parts, learn
from wdae.model.model import Model
from wdae.model.names import check_name
from wdae.model.picture import PictureBackbone, load_backbone, of_stage1
from wdae.progress import progress


def learn_from(
    source: Path,
    config: LearnConfig,
    *,
    backbone: str | None = None,
    train: str = "conv4-64",
    epochs: int = 30,
    size: int = 84,
    skip_broken: bool = False,
) -> Model:
    """Learn a model from a bank, a file of features, or a folder with a folder of pictures per class.

    Args:
        source: one of those.
        config: how base weights, denoiser and calibration are learned.
        backbone: a frozen backbone for pictures (see :func:`wdae.model.picture.load_backbone`); without,
            one is trained on the pictures themselves.
        train: which backbone to train then; ``epochs`` and ``size`` (side of the pictures) belong to it.
        skip_broken: leave unreadable pictures out.
    """
    info: dict[str, Any] = {"labels": "text", "source": source.name}
    if (source / "manifest.json").is_file():
        return _learn(FeatureBank.open(source), config, info)
    if is_feature_file(source):
        return _learn(_file_bank(source, config), config, info)
    from wdae.data import open_dataset

    images = _base_only(open_dataset(source))
    for name in images.class_names:
        check_name(name)
    per_class = _per_class(images, config.held_out)
    images = hold_out(images, per_class, config.seed) if per_class else images
    if backbone is not None:
        eye, weights, scale = load_backbone(backbone), None, None
    else:
        eye, weights, scale = _trained(
            source, images, config.seed, per_class, train, epochs, size, skip_broken
        )
    bank = _picture_bank(images, eye, weights, scale, skip_broken)
    model = _learn(bank, config, info | {"backbone": eye.name})
    model.backbone = eye
    return model


def _learn(bank: FeatureBank, config: LearnConfig, info: Mapping[str, Any]) -> Model:
    per_step = max(1, min(8, 500 // max(1, min(bank.n_base, config.max_classes))))
    total = config.steps * per_step if config.kind != "none" and bank.n_base >= FEWEST_CLASSES else 0
    with progress(total, "training the denoiser") as bar:
        return learn(bank, config, info=dict(info), told=bar.update)


def _file_bank(path: Path, config: LearnConfig) -> FeatureBank:
    from wdae.bank.importing import import_bank

    bank = import_bank(path, all_base=True, held_out=0)
    if bank.has(Part.BASE_HELD_OUT) or bank.base_weights is not None:
        return bank
    base = (bank.parts == Part.BASE_TRAIN.code).nonzero()[:, 0]
    parts = bank.parts.clone()
    _, numbered = bank.labels[base].unique(return_inverse=True)
    parts[base] = held_out_parts(numbered, config.held_out, config.seed)
    return replace(bank, parts=parts)


def _base_only(images: ImageSet) -> ImageSet:
    """Without novel classes, which nothing may be learned from."""
    rows = np.flatnonzero(images.parts != Part.NOVEL.code).astype(np.int64)
    if not len(rows):
        raise DataError(f"{images.name} has novel classes only; give base classes to learn from")
    return images.select(rows)


def _per_class(images: ImageSet, share: float) -> int:
    """How many pictures of each base class to hold out: a share of the smallest class, where it has 4."""
    if len(images.rows(Part.BASE_HELD_OUT)):
        return 0
    counts = images.counts(Part.BASE_TRAIN)
    fewest = int(counts[counts > 0].min())
    return max(1, round(share * fewest)) if fewest >= 4 and share > 0 else 0


def _trained(
    source: Path,
    images: ImageSet,
    seed: int,
    per_class: int,
    name: str,
    epochs: int,
    size: int,
    skip_broken: bool,
) -> tuple[PictureBackbone, torch.Tensor, float]:
    """Stage 1 on the pictures: backbone, base weights and scale."""
    from wdae.train.model_file import load_model
    from wdae.train.session import pretrain_session
    from wdae.train.stage1_config import DataConfig, Stage1Config, ValidationConfig

    options = {"image_size": size} if name.startswith("conv4") else {}
    recipe = Stage1Config(
        data=DataConfig(path=source, size=size, held_out=per_class, skip_broken=skip_broken),
        backbone=name,
        backbone_options=options,
        epochs=epochs,
        batch=min(64, len(images.rows(Part.BASE_TRAIN))),
        validation=ValidationConfig(every=max(1, epochs), episodes=200),
        keep="last",
        precision="float32",
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = pretrain_session(recipe, Path(folder) / "run")
        if outcome is None or outcome.model is None:
            raise WdaeError("training the backbone did not finish")
        trained = load_model(outcome.model)
        classifier = trained.recogniser.classifier
        eye = of_stage1(outcome.model)
    return eye, classifier.weight.detach().clone(), float(classifier.scale.detach())


def _picture_bank(
    images: ImageSet,
    eye: PictureBackbone,
    weights: torch.Tensor | None,
    scale: float | None,
    skip_broken: bool,
) -> FeatureBank:
    features, rows = [], []
    with progress(len(images), "reading pictures", "pictures") as bar:
        for piece in eye.embed(images, skip_broken=skip_broken):
            features.append(piece.features)
            rows.append(piece.rows)
            bar.update(len(piece.rows))
    at = torch.cat(rows).numpy()
    return FeatureBank.build(
        torch.cat(features), images.labels[at], images.class_names, images.parts[at], weights, scale
    )
