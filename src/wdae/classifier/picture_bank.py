"""From folders of pictures to a bank: a backbone trained on them where there is none, and their features."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.calibration.outlier_pictures import draw_outliers
from wdae.classifier.learn_job import LearnJob, Work
from wdae.classifier.picture_backbone import PictureBackbone, of_stage1
from wdae.data import ImageSet
from wdae.data.findings import warn_left_out
from wdae.errors import WdaeError
from wdae.parts import Part
from wdae.runs.progress import progress
from wdae.runtime.randomness import derive_seed
from wdae.storage.tensors import load_parts, save_tensors

_OUTLIERS = 40  # pictures of nothing of each kind
_SAVED_TOGETHER = 2048  # pictures whose features an interruption can cost


def trained_backbone(
    job: LearnJob, source: Path, images: ImageSet, per_class: int, work: Work
) -> tuple[PictureBackbone, Tensor, float]:
    """Stage 1 on the pictures of a folder, ``per_class`` of each class held out: backbone, weights, scale."""
    from wdae.stage1.config import DataConfig, Stage1Config, ValidationConfig
    from wdae.stage1.model_file import WEIGHTS, load_model
    from wdae.stage1.run import run_pretraining
    from wdae.stage1.train import LAST, MODEL

    if not (work.run / MODEL / WEIGHTS).is_file():
        options = {"image_size": job.size} if job.train.startswith("conv4") else {}
        recipe = Stage1Config(
            data=DataConfig(path=source, size=job.size, held_out=per_class, skip_broken=job.skip_broken),
            backbone=job.train,
            backbone_options=options,
            epochs=job.epochs,
            batch=min(64, len(images.rows(Part.BASE_TRAIN))),
            validation=ValidationConfig(every=job.epochs, episodes=200),
            keep="last",
            precision="float32",
            checkpoint_every=1,
            seed=job.config.seed,
        )
        begun = (work.run / LAST).is_file()
        outcome = run_pretraining(recipe, work.run, resume=begun, force=not begun)
        if outcome is None or outcome.model is None:
            raise WdaeError("training the backbone did not finish; go on with: wdae learn ... --resume")
    classifier = load_model(work.run / MODEL, trust=job.train).network.classifier
    return (
        of_stage1(work.run / MODEL, job.train),
        classifier.weight.detach().clone(),
        float(classifier.scale.detach()),
    )


def picture_bank(
    images: ImageSet,
    backbone: PictureBackbone,
    weights: Tensor | None = None,
    scale: float | None = None,
    work: Work | None = None,
    *,
    skip_broken: bool = False,
) -> FeatureBank:
    """The features of all pictures; those that an earlier attempt kept in ``work`` are not computed again."""
    kept = load_parts(work.features(), len(images), backbone.dim) if work is not None else []
    done = torch.cat([part["rows"] for part in kept]).numpy() if kept else np.empty(0, dtype=np.int64)
    todo = np.setdiff1d(np.arange(len(images)), done)
    features: list[Tensor] = []
    rows: list[Tensor] = []

    def put_away() -> None:
        if rows:
            kept.append({"features": torch.cat(features), "rows": torch.cat(rows)})
            if work is not None:
                save_tensors(work.next_features(), kept[-1])
            features.clear()
            rows.clear()

    with progress(len(images), "reading pictures", "pictures", done=len(done)) as bar:
        for piece in backbone.embed(images, rows=todo, skip_broken=skip_broken):
            features.append(piece.features)
            rows.append(piece.rows)
            bar.update(len(piece.rows))
            if sum(map(len, rows)) >= _SAVED_TOGETHER:
                put_away()
    put_away()
    at = torch.cat([part["rows"] for part in kept]).numpy()
    warn_left_out(images, at)
    found = torch.cat([part["features"] for part in kept])
    return FeatureBank.build(found, images.labels[at], images.class_names, images.parts[at], weights, scale)


def outlier_features(backbone: PictureBackbone, seed: int = 0) -> dict[str, Tensor]:
    """Features ``[m, D]`` of pictures of nothing, by kind: what a model tells the unknown by."""
    with tempfile.TemporaryDirectory() as folder:
        files = draw_outliers(Path(folder), _OUTLIERS, derive_seed(seed, "outliers"))
        rows = backbone.features([file for some in files.values() for file in some])
    return dict(zip(files, rows.split(_OUTLIERS), strict=True))
