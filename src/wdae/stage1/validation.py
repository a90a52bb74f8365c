"""How good stage 1 is so far: few-shot on the validation classes, plain accuracy on held-out base images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.backbones.embed import embed
from wdae.bank import FeatureBank
from wdae.data.augment import AugmentConfig
from wdae.parts import Part
from wdae.stage1.config import Stage1Config
from wdae.stage1.recognition_model import RecognitionModel


@dataclass(frozen=True, eq=False)
class Labelled:
    """Pictures ``[M, 3, S, S]`` uint8 and their labels ``[M]``, numbered from 0 within the part."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)


def validate(
    model: RecognitionModel,
    config: Stage1Config,
    validation: Labelled | None,
    held_out: Labelled | None,
    device: torch.device,
) -> dict[str, float]:
    """``val_1shot`` and ``val_5shot`` (percent, 5-way, nearest class mean) with their intervals,
    ``val_score`` (their mean), and ``base_accuracy`` on held-out images; what has no images is left out.
    """
    was_training = model.training
    model.eval()
    augment = config.augment.model_copy(update={"size": None}).build()
    figures: dict[str, float] = {}
    if validation is not None:
        features = _embed(model, validation, config, augment, device)
        figures |= few_shot(features, validation.labels, config.validation.episodes, config.seed)
    if held_out is not None:
        features = _embed(model, held_out, config, augment, device)
        with torch.no_grad():
            right = model.classifier(features).argmax(dim=1) == held_out.labels.to(device)
        figures["base_accuracy"] = 100.0 * float(right.double().mean())
    model.train(was_training)
    return figures


def few_shot(features: Tensor, labels: Tensor, episodes: int, seed: int) -> dict[str, float]:
    """5-way accuracies of the nearest class mean, 1 and 5 shots, 15 queries a class, in percent."""
    from wdae.evaluation.nearest_mean import nearest_mean_accuracy

    names = [str(label) for label in range(int(labels.max()) + 1)]
    bank = FeatureBank.build(features.float().cpu(), labels.cpu(), names, Part.VALIDATION)
    classes = bank.select(Part.VALIDATION, device=features.device)
    n_way = min(5, classes.n_classes)
    figures: dict[str, float] = {}
    for n_shot in (1, 5):
        n_query = min(15, int(classes.counts.min()) - n_shot)
        if n_query < 1 or n_way < 2:
            continue
        mean, ci95 = nearest_mean_accuracy(classes, n_way, n_shot, n_query, episodes, seed)
        figures |= {f"val_{n_shot}shot": 100.0 * mean, f"val_{n_shot}shot_ci95": 100.0 * ci95}
    scores = [figures[key] for key in ("val_1shot", "val_5shot") if key in figures]
    return figures | ({"val_score": sum(scores) / len(scores)} if scores else {})


def _embed(
    model: RecognitionModel,
    data: Labelled,
    config: Stage1Config,
    augment: AugmentConfig,
    device: torch.device,
) -> Tensor:
    return embed(
        model.backbone,
        data.images,
        augment,
        device=device,
        batch=config.validation.batch,
        precision=config.precision,
    )
