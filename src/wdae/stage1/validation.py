"""Validation of stage 1: few-shot accuracy on validation classes, accuracy on held-out base images."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from wdae.backbones.embed import embed
from wdae.bank import FeatureBank
from wdae.evaluation.protocol import nearest_mean_accuracy
from wdae.parts import Part
from wdae.stage1.config import Stage1Config
from wdae.stage1.data import Stage1Data
from wdae.stage1.recognition_model import RecognitionModel


def validate(
    model: RecognitionModel, config: Stage1Config, data: Stage1Data, device: torch.device
) -> dict[str, float]:
    """``val_1shot`` and ``val_5shot`` (percent, 5-way, nearest class mean) with their intervals,
    ``val_score`` (their mean), and ``base_accuracy`` on held-out images; what has no images is left out.
    """
    was_training = model.training
    model.eval()
    features_of = partial(
        embed,
        model.backbone,
        config=config.augment.model_copy(update={"size": None}),
        device=device,
        batch=config.validation.batch,
        precision=config.precision,
    )
    figures: dict[str, float] = {}
    if data.validation is not None:
        features = features_of(data.validation.images)
        figures |= few_shot(features, data.validation.labels, config.validation.episodes, config.seed)
    if data.held_out is not None:
        with torch.no_grad():
            predicted = model.classifier(features_of(data.held_out.images)).argmax(dim=1)
        right = predicted == data.held_out.labels.to(device)
        figures["base_accuracy"] = 100.0 * float(right.double().mean())
    model.train(was_training)
    return figures


def few_shot(features: Tensor, labels: Tensor, episodes: int, seed: int) -> dict[str, float]:
    """5-way accuracies of the nearest class mean, 1 and 5 shots, 15 queries a class, in percent."""
    names = [str(label) for label in range(int(labels.max()) + 1)]
    bank = FeatureBank.build(features.float().cpu(), labels.cpu(), names, Part.VALIDATION)
    classes = bank.select(Part.VALIDATION, device=features.device)
    n_way = min(5, classes.n_classes)
    figures: dict[str, float] = {}
    for n_shot in (1, 5):
        n_query = min(15, int(classes.counts.min()) - n_shot)
        if n_query < 1 or n_way < 2:
            continue
        found = nearest_mean_accuracy(classes, n_way, n_shot, n_query, episodes, seed)
        figures |= {f"val_{n_shot}shot": 100 * found.mean, f"val_{n_shot}shot_ci95": 100 * found.ci95}
    scores = [figures[key] for key in ("val_1shot", "val_5shot") if key in figures]
    return figures | ({"val_score": sum(scores) / len(scores)} if scores else {})
