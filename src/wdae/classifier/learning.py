"""From a bank of base features to a model: base weights, denoiser, calibration, graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.calibration.rehearse import Stage, calibrate
from wdae.classifier.base_knowledge import Ground
from wdae.classifier.base_weights import learn_weights
from wdae.classifier.config import LearnConfig
from wdae.classifier.model import Model
from wdae.errors import BankError
from wdae.evaluation.config import EvaluationConfig
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.graph import build_graph
from wdae.nn.incremental import BaseState
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.learner import as_method
from wdae.stage2.train import train

FEWEST_CLASSES = 10
"""Base classes that a denoiser is trained on, beside those it is rehearsed with; with fewer there is none."""

_KEPT_EVERY = 100  # steps between two checkpoints

OnProgress = Callable[..., None]


def learn(
    bank: FeatureBank,
    config: LearnConfig | None = None,
    *,
    info: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    checkpoint: Path | None = None,
) -> Model:
    """Learn a model from the base classes of a bank.

    Held-out base images calibrate it. Classes that play new in the rehearsal are the bank's validation
    classes or, where it has none, some base classes that the denoiser then does not see. Novel classes of
    the bank are never looked at.

    Args:
        bank: with base-train images; base weights are learned where it has none.
        config: everything that matters.
        info: provenance to keep with the model, JSON values.
        on_progress: called with the number of training episodes done, for a progress bar.
        checkpoint: where to keep the denoiser's training, and to go on from if it is there.

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 4, 2, 12, 8, seed=0, held_out_per_class=4)
    >>> model = learn(bank, LearnConfig(hidden=8, steps=2, calibration_episodes=10))
    >>> len(model.names), model.ground.info["denoiser"]
    (16, 'gnn, trained on 16 classes')
    """
    config = config or LearnConfig()
    if not bank.has(Part.BASE_TRAIN):
        raise BankError("the bank has no base-train images to learn a model from")
    train_set = bank.select(Part.BASE_TRAIN)
    held_out = bank.select(Part.BASE_HELD_OUT) if bank.has(Part.BASE_HELD_OUT) else None
    if bank.base_weights is None:
        seed = derive_seed(config.seed, "base weights")
        weights, scale = learn_weights(train_set, held_out, config.weight_epochs, seed)
    else:
        weights, scale = unit(bank.base_weights.float()), bank.cosine_scale or 10.0
    cast = _cast(bank, train_set, held_out, weights, config)
    method, why_not = _denoiser(cast, scale, config, on_progress, checkpoint)
    stages: list[Stage] = []
    if held_out is not None and method is None and not bank.has(Part.VALIDATION):
        stages = _rotation(train_set, held_out, weights, config)
    elif cast.held_out is not None and cast.pool is not None:
        state = None
        if method is not None:
            state = BaseState(method.denoiser, cast.base, method.n_neighbours, method.inverse_temperature)
        stages = [Stage(cast.base, cast.held_out, cast.pool, state)]
    calibration, steps = calibrate(
        weights,
        held_out,
        scale,
        stages,
        config.shots,
        config.calibration_episodes,
        derive_seed(config.seed, "rehearsal"),
        config.novel_share,
    )
    graph = None
    if method is not None:
        method.steps = steps or method.steps
        if method.denoiser.kind == "gnn":
            graph = build_graph(weights, method.n_neighbours, method.inverse_temperature)
    facts = {
        "denoiser": why_not or f"{config.kind}, trained on {len(cast.base)} classes",
        "played_new": sum(stage.pool.n_classes for stage in stages),
        "recipe": config.model_dump(mode="json"),
        **(info or {}),
    }
    ground = Ground(
        train_set.names, weights, train_set.counts, calibration, method, graph, config.refine_base, facts
    )
    return Model(ground)


@dataclass(frozen=True)
class _Cast:
    """Who plays what in training and rehearsal; ``train`` holds the images of the classes of ``base``."""

    base: Tensor
    train: ClassSet
    held_out: ClassSet | None
    pool: ClassSet | None


def _cast(
    bank: FeatureBank, train_set: ClassSet, held_out: ClassSet | None, weights: Tensor, config: LearnConfig
) -> _Cast:
    order = _shuffled(train_set.n_classes, config.seed)
    stays, pool = order, None
    if bank.has(Part.VALIDATION):
        pool = bank.select(Part.VALIDATION)
    elif config.kind != "none" and len(order) >= FEWEST_CLASSES + 2:
        n_new = max(2, round(0.2 * len(order)))
        chosen = order[: min(n_new, config.max_classes // 2)].sort().values
        pool = _images_of(train_set, held_out, chosen, max(config.shots) + 1)
        stays = order[n_new:] if pool is not None else order
    stays = stays[: config.max_classes].sort().values
    kept = _pick(held_out, stays) if held_out is not None else None
    if kept is not None and not len(kept.features):
        kept = None
    return _Cast(weights[stays], _pick(train_set, stays), kept, pool)


def _rotation(train_set: ClassSet, held_out: ClassSet, weights: Tensor, config: LearnConfig) -> list[Stage]:
    """Without a denoiser every base class can play new in turn, a quarter of them at a time."""
    order = _shuffled(train_set.n_classes, config.seed)[: config.max_classes]
    if len(order) < 3:
        return []
    stages = []
    for fold in order.chunk(4 if len(order) >= 4 else len(order)):
        stays = order[~torch.isin(order, fold)].sort().values
        pool = _images_of(train_set, held_out, fold.sort().values, max(config.shots) + 1)
        kept = _pick(held_out, stays)
        if pool is not None and len(kept.features):
            stages.append(Stage(weights[stays], kept, pool))
    return stages


def _shuffled(n_classes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "cast"))
    return torch.randperm(n_classes, generator=generator)


def _images_of(
    train_set: ClassSet, held_out: ClassSet | None, classes: Tensor, enough: int
) -> ClassSet | None:
    """Images of classes that play new: held-out ones where there are enough; a backbone may know others."""
    if held_out is not None and int(held_out.counts[classes].min()) >= enough:
        return _pick(held_out, classes)
    parts = [train_set] if held_out is None else [train_set, held_out]
    counts = torch.stack([part.counts[classes] for part in parts]).sum(0)
    classes = classes[counts >= 2]
    if not len(classes):
        return None
    groups = [torch.cat([part.of_class(c) for part in parts]) for c in classes.tolist()]
    sizes = torch.tensor([len(group) for group in groups])
    names = tuple(train_set.names[c] for c in classes.tolist())
    return ClassSet(torch.cat(groups), sizes.cumsum(0) - sizes, sizes, names)


def _pick(images: ClassSet, classes: Tensor) -> ClassSet:
    """The images of some classes, numbered anew."""
    rows = [images.of_class(c) for c in classes.tolist()]
    counts = images.counts[classes]
    names = tuple(images.names[c] for c in classes.tolist())
    return ClassSet(torch.cat(rows), counts.cumsum(0) - counts, counts, names)


def _denoiser(
    cast: _Cast, scale: float, config: LearnConfig, on_progress: OnProgress | None, checkpoint: Path | None
) -> tuple[WDAE | None, str]:
    """A trained denoiser, or the reason why there is none."""
    if config.kind == "none":
        return None, "none, as asked for"
    several = (cast.train.counts >= 2).nonzero()[:, 0]
    if len(several) < FEWEST_CLASSES or cast.pool is None or cast.held_out is None:
        return None, (
            f"none: {len(several)} base classes with 2 images or more; {FEWEST_CLASSES + 2} with at least 4"
            " are needed. Added classes keep their initial estimate"
        )
    pool = _pick(cast.train, several)
    fewest = int(pool.counts.min())
    shots = tuple(k for k in config.shots if k < fewest) or (1,)
    recipe = MetaRecipe(
        seed=derive_seed(config.seed, "denoiser"),
        device="cpu",
        precision="float32",
        denoiser=DenoiserConfig(
            kind=config.kind,
            hidden=config.hidden,
            layers=config.layers,
            dropout=config.dropout,
            neighbours=config.neighbours,
            inverse_temperature=config.inverse_temperature,
        ),
        training=TrainingConfig(
            n_fake=max(1, min(20, round(0.3 * len(several)), len(several) - 2)),
            shots=shots,
            queries_per_novel=min(5, fewest - max(shots)),
            noise=config.noise,
            steps=config.steps,
            episodes_per_step=max(1, min(8, 500 // len(several))),
            validate_every=min(_KEPT_EVERY, config.steps),
            keep="last",
        ),
        evaluation=EvaluationConfig(),
    )
    small = FeatureBank.build(
        pool.features,
        pool.labels,
        [str(i) for i in range(len(several))],
        Part.BASE_TRAIN,
        base_weights=cast.base[several],
        cosine_scale=scale,
    )
    begun = checkpoint is not None and checkpoint.is_file()
    learner = train(recipe, small, on_progress=on_progress, checkpoint=checkpoint, resume=begun)
    return as_method(learner, recipe), ""


def held_out_parts(labels: Tensor, share: float, seed: int) -> Tensor:
    """Part codes ``[M]``: of each class a share of its images, drawn at random, is held out.

    A class with fewer than 4 images keeps them all to learn from.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "held out"))
    keys = torch.rand(len(labels), generator=generator, dtype=torch.float64)
    order = (labels.double() + keys).argsort()  # class after class, in random order within each
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    n_held = torch.where(counts >= 4, (share * counts).round().long().clamp(max=counts - 1), 0)
    parts = torch.full((len(labels),), Part.BASE_TRAIN.code, dtype=torch.uint8)
    parts[order[rank < n_held[labels[order]]]] = Part.BASE_HELD_OUT.code
    return parts
