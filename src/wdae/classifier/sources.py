"""Learn a model from what people have: pictures in folders, a file of features, or a feature bank."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from wdae.backbones.packaged import LITE, packaged
from wdae.backbones.preprocessing import PREPROCESSING, Preprocessing, refuse_other
from wdae.bank import FeatureBank
from wdae.classifier.embedded import LITE_READY, embedded_model, lite_model
from wdae.classifier.learn_job import LearnConfig, LearnJob, Work
from wdae.classifier.learning import MethodLike, RecipeLike, as_recipe, held_out_parts, learn_from_bank
from wdae.classifier.light.sources import is_feature_file
from wdae.classifier.model import Model
from wdae.classifier.names import check_name, lookalikes
from wdae.classifier.picture_backbone import PictureBackbone, load_backbone
from wdae.classifier.picture_bank import outlier_features, picture_bank, trained_backbone
from wdae.config.shipped import EMBEDDED
from wdae.data import ImageSet, hold_out
from wdae.errors import DataError, ModelError
from wdae.methods.base import Method
from wdae.methods.wdae import WDAE
from wdae.parts import Part
from wdae.storage.files import sha256

OnProgress = Callable[[str], None]


def learn(
    source: FeatureBank | str | Path | None = None,
    config: LearnConfig | None = None,
    *,
    method: MethodLike | None = None,
    recipe: RecipeLike | None = None,
    info: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Learn a model from a bank, a file of features, or a folder with a folder of pictures per class.

    Args:
        source: the base classes; without, the model is the one that ships with the package.
        config: what is not a matter of the recipe: held-out images, the share of novel pictures, the seed.
        method: a trained method to teach with: the method, its run folder or file, or ``initial-estimate``.
        recipe: how to train one: a recipe, its file, or keys in which it differs from wDAE-GNN+, the default.
        info: provenance to keep with the model, JSON values (banks only).
        options: for pictures, others of :class:`wdae.classifier.learn_job.LearnJob`: ``backbone``, ...

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(8, 0, 0, 12, 8, seed=0, held_out_per_class=4)
    >>> model = learn(bank, method="initial-estimate")
    >>> model.add({"okapi": bank.features[:1]})
    >>> len(model.names), model.added
    (9, ('okapi',))
    """
    if isinstance(source, FeatureBank):
        return learn_from_bank(source, config, method=method, recipe=recipe, info=info)
    if isinstance(method, Method):
        raise ModelError(
            "a method in memory goes with a bank in memory; give the method's run folder or file"
        )
    job = LearnJob(
        source=None if source is None else Path(source),
        method=None if method is None else str(method),
        recipe=None if recipe is None else as_recipe(recipe, (config or LearnConfig()).seed),
        config=config or LearnConfig(),
        **options,
    )
    with tempfile.TemporaryDirectory() as folder:
        return run_job(job, Work(Path(folder)))


def run_job(job: LearnJob, work: Work, on_progress: OnProgress = lambda _line: None) -> Model:
    """Do what was asked for.

    Args:
        work: where to keep what can be gone on from, and to go on from what is there.
        on_progress: called with advice for the person who asked, a line at a time.
    """
    if job.source is None:
        return _ready(job)
    source, info = job.source, {"labels": "text", "source": job.source.name}
    if (source / "manifest.json").is_file():
        work.check_source(sha256(source / "manifest.json"))
        return _from_features(FeatureBank.open(source), job, work, info)
    if is_feature_file(source):
        work.check_source(sha256(source))
        return _from_features(_file_bank(source, job), job, work, info)
    return _from_pictures(source, job, work, info, on_progress)


def _ready(job: LearnJob) -> Model:
    if job.backbone not in (None, EMBEDDED, *LITE_READY):
        raise DataError(
            f"nothing to learn from with backbone {job.backbone}: give a folder with a folder of pictures"
            " per class, a feature bank, or a file of features; a model is ready with: embedded,"
            f" {', '.join(LITE_READY)}"
        )
    config, made = job.config, LearnConfig()
    fixed = [key for key in LearnConfig.model_fields if getattr(config, key) != getattr(made, key)]
    fixed = [key for key in fixed if key not in ("novel_share", "refine_base")]
    fixed += [key for key in ("method", "recipe") if getattr(job, key) is not None]
    fixed += [key for key, value in job.seen.model_dump().items() if value is not None]
    if fixed:
        raise DataError(
            f"the model that is ready to use is learned already, so {', '.join(sorted(fixed))} cannot"
            " be set; give something to learn from, or leave it out"
        )
    model = lite_model(job.backbone) if job.backbone in LITE_READY else embedded_model()
    method = model.base.method
    if config.novel_share is not None:
        method.balance = replace(model.base.calibration, novel_share=config.novel_share)
    if config.refine_base is not None and isinstance(method, WDAE):
        method.refine_base = config.refine_base
    return model


def _from_pictures(
    source: Path, job: LearnJob, work: Work, info: Mapping[str, Any], on_progress: OnProgress
) -> Model:
    from wdae.data import open_dataset

    config = job.config
    images = _base_only(open_dataset(source))
    for name in images.class_names:
        check_name(name)
    for name, other in lookalikes(images.class_names, ()):
        on_progress(f"warning: {name!r} and {other!r} become two classes; if they are one, use one folder")
    if len(images.class_names) == 1:
        on_progress("warning: 1 class has nothing to be told from; new classes are told from it alone")
    work.check_source(images.source.stamp())
    for note in images.notes:
        on_progress(f"note: {note}")
    if job.backbone is not None:
        images = hold_out(images, _each(images, config.held_out), config.seed)
        backbone, weights, scale = _backbone(job.backbone, job), None, None
    else:
        per_class = _per_class(images, config.held_out)
        images = hold_out(images, per_class, config.seed) if per_class else images
        on_progress(
            f"training {job.train} on {len(images)} pictures; with fewer than some hundred a class, the"
            " backbone that ships with the package is better and quicker: --backbone embedded"
        )
        backbone, weights, scale = trained_backbone(job, source, images, per_class, work)
    bank = picture_bank(images, backbone, weights, scale, work, skip_broken=job.skip_broken)
    model = _learn(bank, job, work, {**info, "backbone": backbone.name}, backbone)
    model.backbone = backbone
    return model


def _learn(
    bank: FeatureBank,
    job: LearnJob,
    work: Work,
    info: Mapping[str, Any],
    backbone: PictureBackbone | None = None,
) -> Model:
    return learn_from_bank(
        bank,
        job.config,
        method=job.method,
        recipe=job.recipe,
        info=info,
        checkpoint=work.denoiser,
        show_progress=True,
        outliers=None if backbone is None else outlier_features(backbone, job.config.seed),
        background=None if backbone is None else _own_classes(backbone.name),
    )


def _own_classes(name: str) -> tuple[Tensor, ...] | None:
    """The classifier that a backbone was trained with, where its package has it, and its mean feature."""
    if name not in LITE:
        return None
    found = packaged(name)
    return found.weight.detach(), found.bias.detach(), found.mean_feature()


def _from_features(bank: FeatureBank, job: LearnJob, work: Work, info: Mapping[str, Any]) -> Model:
    """A model learned from features takes pictures too, with the backbone that they came from."""
    for name in bank.select(Part.BASE_TRAIN).names:
        check_name(name, separators=True)
    backbone = None if job.backbone is None else _backbone(job.backbone, job)
    if backbone is not None:
        if backbone.dim != bank.dim:
            raise ModelError(
                f"backbone {job.backbone} gives features of size {backbone.dim}, those of {job.source} are of"
                f" size {bank.dim}; give the backbone that they were computed with"
            )
        if isinstance(made := bank.info.get(PREPROCESSING), Mapping):
            there = Preprocessing.of(made, f"the backbone of {job.source}")
            refuse_other(there, str(job.source), backbone.preprocessing, f"backbone {job.backbone}")
    model = _learn(bank, job, work, info, backbone)
    model.backbone = backbone
    return model


def _backbone(name: str, job: LearnJob) -> PictureBackbone:
    return load_backbone(name, **job.seen.model_dump()).on(job.device)


def _file_bank(path: Path, job: LearnJob) -> FeatureBank:
    from wdae.bank.importing import import_bank

    config = job.config
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


def _each(images: ImageSet, share: float) -> npt.NDArray[np.int64]:
    """How many pictures of each class to hold out ``[C]``: a share of its own, of a base class that has 4."""
    counts = images.counts(Part.BASE_TRAIN)
    if len(images.rows(Part.BASE_HELD_OUT)) or share <= 0:
        return np.zeros(len(counts), np.int64)
    held_out = np.clip(np.round(share * counts).astype(np.int64), 1, np.maximum(counts - 1, 1))
    return np.where(counts >= 4, held_out, 0)


def _per_class(images: ImageSet, share: float) -> int:
    """How many pictures of each base class to hold out to train a backbone on the others.

    A share of the smallest class, where it has 4: training holds out the same number of each.
    """
    if len(images.rows(Part.BASE_HELD_OUT)):
        return 0
    counts = images.counts(Part.BASE_TRAIN)
    fewest = int(counts[counts > 0].min())
    return max(1, round(share * fewest)) if fewest >= 4 and share > 0 else 0
