"""Learn a model from what people have: pictures in folders, a file of features, or a feature bank."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdae.bank import FeatureBank
from wdae.classifier.inputs import is_feature_file
from wdae.classifier.learning import FEWEST_CLASSES, held_out_parts, learn
from wdae.classifier.lesson import Lesson, Work
from wdae.classifier.model import Model
from wdae.classifier.names import check_name
from wdae.classifier.picture_backbone import EMBEDDED, load_backbone
from wdae.classifier.picture_bank import picture_bank, trained_backbone
from wdae.data import ImageSet, hold_out
from wdae.errors import DataError, ModelError
from wdae.parts import Part
from wdae.runs.progress import progress
from wdae.storage.files import sha256

OnProgress = Callable[[str], None]


def learn_from(
    lesson: Lesson, work: Work | None = None, on_progress: OnProgress = lambda _line: None
) -> Model:
    """Learn a model from a bank, a file of features, or a folder with a folder of pictures per class.

    Without a source it is the one that ships with the package: 64 classes, pictures in.

    Args:
        lesson: from what, and how.
        work: where to keep what can be gone on from, and to go on from what is there.
        on_progress: called with advice for the person who asked, a line at a time.
    """
    if lesson.source is None:
        return _ready(lesson)
    if work is None:
        with tempfile.TemporaryDirectory() as folder:
            return learn_from(lesson, Work(Path(folder)), on_progress)
    source, info = lesson.source, {"labels": "text", "source": lesson.source.name}
    if (source / "manifest.json").is_file():
        work.check_source(sha256(source / "manifest.json"))
        return _with_backbone(_learn(FeatureBank.open(source), lesson, work, info), lesson)
    if is_feature_file(source):
        work.check_source(sha256(source))
        return _with_backbone(_learn(_file_bank(source, lesson), lesson, work, info), lesson)
    return _from_pictures(source, lesson, work, info, on_progress)


def _ready(lesson: Lesson) -> Model:
    from wdae.classifier.embedded import embedded_model

    if lesson.backbone not in (None, EMBEDDED):
        raise DataError(
            f"nothing to learn from with backbone {lesson.backbone}: give a folder with a folder of pictures"
            " per class, a feature bank, or a file of features"
        )
    model = embedded_model()
    recipe, made = lesson.recipe, type(lesson.recipe)()
    changed = sorted(key for key in type(made).model_fields if getattr(recipe, key) != getattr(made, key))
    fixed = [key for key in changed if key not in ("novel_share", "refine_base")]
    if fixed:
        raise DataError(
            f"the model that ships with the package is learned already, so {', '.join(fixed)} cannot be set;"
            " give something to learn from, or leave it out"
        )
    calibration = replace(model.ground.calibration, novel_share=recipe.novel_share)
    model.ground = replace(model.ground, calibration=calibration, refine_base=recipe.refine_base)
    return model


def _from_pictures(
    source: Path, lesson: Lesson, work: Work, info: Mapping[str, Any], on_progress: OnProgress
) -> Model:
    from wdae.data import open_dataset

    config = lesson.recipe
    images = _base_only(open_dataset(source))
    for name in images.class_names:
        check_name(name)
    work.check_source(images.source.stamp())
    per_class = _per_class(images, config.held_out)
    images = hold_out(images, per_class, config.seed) if per_class else images
    if lesson.backbone is not None:
        eye, weights, scale = load_backbone(lesson.backbone), None, None
    else:
        on_progress(
            f"training {lesson.train} on {len(images)} pictures; with fewer than some hundred a class, the"
            " backbone that ships with the package is better and quicker: --backbone embedded"
        )
        eye, weights, scale = trained_backbone(lesson, source, images, per_class, work)
    bank = picture_bank(images, eye, weights, scale, work, skip_broken=lesson.skip_broken)
    model = _learn(bank, lesson, work, {**info, "backbone": eye.name})
    model.backbone = eye
    return model


def _learn(bank: FeatureBank, lesson: Lesson, work: Work, info: Mapping[str, Any]) -> Model:
    config = lesson.recipe
    per_step = max(1, min(8, 500 // max(1, min(bank.n_base, config.max_classes))))
    total = config.steps * per_step if config.kind != "none" and bank.n_base >= FEWEST_CLASSES else 0
    done = per_step * _steps_done(work.denoiser)
    with progress(total, "training the denoiser", done=done) as bar:
        return learn(bank, config, info=dict(info), on_progress=bar.update, checkpoint=work.denoiser)


def _steps_done(checkpoint: Path) -> int:
    from wdae.storage.checkpoint import load_checkpoint

    return int(load_checkpoint(checkpoint).state["progress"]["step"]) if checkpoint.is_file() else 0


def _with_backbone(model: Model, lesson: Lesson) -> Model:
    """A model learned from features takes pictures too, once it is told which backbone they came from."""
    if lesson.backbone is None:
        return model
    eye = load_backbone(lesson.backbone)
    if eye.dim != model.ground.dim:
        raise ModelError(
            f"backbone {lesson.backbone} gives features of size {eye.dim}, those of {lesson.source} are of"
            f" size {model.ground.dim}; give the backbone that they were computed with"
        )
    model.backbone = eye
    return model


def _file_bank(path: Path, lesson: Lesson) -> FeatureBank:
    from wdae.bank.importing import import_bank

    config = lesson.recipe
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
