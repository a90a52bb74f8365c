"""Extraction: every picture of a data set becomes a row of a feature bank.

Features are computed in chunks, each saved when done, so an interrupted extraction resumes where it was.
Several processes (``torchrun``, with a shared folder) share the chunks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wdae import backbones
from wdae.backbones.packaged import LITE, packaged
from wdae.backbones.preprocessing import PREPROCESSING, Preprocessing
from wdae.bank import FeatureBank
from wdae.data import ImageSet, pixels
from wdae.data.findings import warn_left_out
from wdae.data.layouts import open_dataset
from wdae.data.stream import stream
from wdae.errors import ModelError
from wdae.extract.config import ExtractConfig
from wdae.extract.views import Read, Rows, Views, check_same_rows, seed_of
from wdae.parts import Part
from wdae.runs.progress import progress
from wdae.runtime.device import fast_arithmetic
from wdae.runtime.distributed import Team, join
from wdae.stage1.data import assign_parts
from wdae.stage1.model_file import WEIGHTS, Stage1Model, load_model
from wdae.storage.files import refuse_existing
from wdae.storage.files import sha256 as file_sha256
from wdae.storage.records import read_json, write_json
from wdae.storage.tensors import load_parts, save_tensors
from wdae.storage.trust import Trust
from wdae.storage.unfinished import empty, unfinished, working


@dataclass(frozen=True)
class Extraction:
    """What an extraction did: the bank's folder, how many pictures, at which rate."""

    path: Path
    images: int
    images_per_s: float
    tflops: float


def extract(config: ExtractConfig, out: str | Path, team: Team, *, trust: Trust = ()) -> Extraction:
    """Write the feature bank of a data set to the new folder ``out``.

    The bank holds every part; with a model of ours, the base weights and the scale too. ``trust`` is a
    backbone of others that the model may name.
    """
    out = Path(out)
    refuse_existing(out)
    fast_arithmetic(team.device)
    model = load_model(config.trained, trust=trust) if config.trained is not None else None
    if model is not None:
        backbone = model.network.backbone
    elif config.backbone in LITE:
        backbone = packaged(config.backbone).backbone
    else:
        backbone = backbones.build(config.backbone, **config.backbone_options)
    backbone = backbone.to(team.device).eval()
    if team.device.type == "cuda":
        backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.compile:
        for stage in backbone.stages:
            stage.compile(dynamic=False)
    rule = Preprocessing.of(model.card) if model else backbone.preprocessing
    sides = config.sizes or (config.size or rule.image_size,)
    rule = rule.changed(side=sides[0])
    images = _images(config, model)
    if model is not None:
        _check_classes(model, images)
    read, count = _reader(config, images, rule, sides)
    with working(out) if team.is_main else nullcontext(unfinished(out)) as work:
        _begin(work, _plan(config, images, rule, sides, count), team)
        views = Views(config, backbone, rule, sides, team.device, seed_of(config, model))
        rate = _run_chunks(config, views, read, count, work, team)
        if team.is_main:
            _assemble(config, model, images, rule, sides, count, work).save(out, config.dtype)
    team.barrier()
    mirrored = 2 if config.flip_average else 1
    flops = mirrored * sum(backbones.forward_flops(backbone, side) for side in sides)
    flops += config.crops * backbones.forward_flops(backbone, sides[0])
    return Extraction(out, count, rate, rate * flops / 1e12)


def run_extraction(
    config: ExtractConfig, output: Path, *, device: str | None = None, trust: Trust = ()
) -> Extraction | None:
    """Extraction to a new bank; what was done on the main process, None on others."""
    with join(device) as team:
        done = extract(config, output, team, trust=trust)
        return done if team.is_main else None


def _run_chunks(config: ExtractConfig, views: Views, read: Read, count: int, work: Path, team: Team) -> float:
    """Embed this process's chunks that are not on disk yet; returns the rate of the embedding alone."""
    starts = list(range(0, count, config.chunk))[team.rank :: team.size]
    todo = [start for start in starts if not _chunk(work, start).is_file()]
    seconds, done = 0.0, 0
    total = sum(min(config.chunk, count - start) for start in todo) if team.is_main else 0
    with progress(total, "extracting", "images") as bar:
        for start in todo:
            stop = min(start + config.chunk, count)
            features, rows, took = views.features(read, start, stop)
            if start != todo[0] or len(todo) == 1:  # The first chunk warms up.
                seconds, done = seconds + took, done + len(rows)
            save_tensors(_chunk(work, start), {"features": features.cpu(), "rows": torch.from_numpy(rows)})
            bar.update(len(rows))
    team.barrier()
    return done / seconds if seconds else 0.0


def _reader(
    config: ExtractConfig, images: ImageSet, rule: Preprocessing, sides: Sequence[int]
) -> tuple[Read, int]:
    """How to get some of the pictures at one of the sides, and how many pictures there are."""
    if config.stream or not rule.is_plain:  # pixels are cached of plain central squares only

        def streamed(side: int, start: int, stop: int) -> tuple[Tensor, Rows]:
            wanted = np.arange(start, stop, dtype=np.int64)
            square = rule.changed(side=side)
            got = list(stream(images, square, 256, rows=wanted, skip_broken=config.skip_broken))
            return torch.cat([b.images for b in got]), torch.cat([b.rows for b in got]).numpy()

        return streamed, len(images)
    arrays = {
        side: pixels(images, side, cache_dir=config.cache_dir, skip_broken=config.skip_broken)
        for side in sides
    }
    check_same_rows({side: array.kept for side, array in arrays.items()})

    def cached(side: int, start: int, stop: int) -> tuple[Tensor, Rows]:
        at = np.arange(start, stop, dtype=np.int64)
        return arrays[side].tensor("cpu", at), arrays[side].kept[at]

    return cached, len(arrays[sides[0]])


def _images(config: ExtractConfig, model: Stage1Model | None) -> ImageSet:
    """The data set, with parts as in the model's training unless the recipe says otherwise."""
    recipe: dict[str, Any] = model.card["recipe"] if model else {}
    trained = recipe.get("data", {})
    images = open_dataset(
        config.data,
        layout=config.layout,
        reading=config.reading or trained.get("reading", "names"),
        allow_missing=config.allow_missing,
    )
    held_out, seed = (0, seed_of(config, model)) if model is None else model.held_out
    held_out = held_out if config.held_out is None else config.held_out
    seed = seed if config.seed is None else config.seed
    if model is not None and config.trained is not None:
        model.refuse_leak(config.trained, held_out, seed)
    return assign_parts(images, trained.get("classes", "base"), held_out, seed)


def _check_classes(model: Stage1Model, images: ImageSet) -> None:
    base = np.unique(images.labels[np.isin(images.parts, (Part.BASE_TRAIN.code, Part.BASE_HELD_OUT.code))])
    found = tuple(images.class_names[label] for label in base.tolist())
    if found != model.class_names:
        odd = sorted(set(found) ^ set(model.class_names))[:5]
        raise ModelError(
            f"the model was trained on {len(model.class_names)} base classes, the data set has {len(found)}; "
            f"differing: {', '.join(odd) or 'their order'}. Give the data set that the model was trained on"
        )


def _plan(
    config: ExtractConfig, images: ImageSet, rule: Preprocessing, sides: Sequence[int], count: int
) -> dict[str, Any]:
    """What the chunks on disk depend on: chunks of another plan are deleted."""
    weights = file_sha256(config.trained / WEIGHTS) if config.trained is not None else ""
    keys = {"backbone_options", "chunk", "flip_average", "precision", "skip_broken", "stream"}
    if config.crops:
        keys |= {"crops", "crop_area", "seed"}
    return {
        **config.model_dump(mode="json", include=keys),
        "backbone": config.backbone if config.trained is None else None,
        "weights": weights,
        "pictures": images.source.stamp(),
        "preprocessing": rule.facts(),
        "sides": list(sides),
        "count": count,
    }


def _begin(work: Path, plan: dict[str, Any], team: Team) -> None:
    if team.is_main:
        file = work / "plan.json"
        if not (file.is_file() and read_json(file) == json.loads(json.dumps(plan))):
            empty(work)
        write_json(file, plan)
    team.barrier()


def _assemble(
    config: ExtractConfig,
    model: Stage1Model | None,
    images: ImageSet,
    rule: Preprocessing,
    sides: Sequence[int],
    count: int,
    work: Path,
) -> FeatureBank:
    chunks = load_parts([_chunk(work, start) for start in range(0, count, config.chunk)], len(images))
    features = torch.cat([chunk["features"] for chunk in chunks])
    rows = torch.cat([chunk["rows"] for chunk in chunks]).numpy()
    warn_left_out(images, rows)
    info: dict[str, Any] = {
        "source": images.name,
        "backbone": model.card["backbone"] if model else config.backbone,
        "flip_average": config.flip_average,
        "sizes": list(sides),
        "precision": config.precision,
        PREPROCESSING: rule.facts(),
    }
    if config.crops:
        info |= {"crops": config.crops, "crop_area": list(config.crop_area)}
    if model is not None:
        info |= {"recipe": model.card["recipe"], "figures": model.card["figures"]}
        info["model_sha256"] = file_sha256(Path(config.backbone) / WEIGHTS)
    classifier = model.network.classifier if model else None
    return FeatureBank.build(
        features,
        images.labels[rows],
        images.class_names,
        images.parts[rows],
        base_weights=classifier.weight.detach().cpu() if classifier else None,
        cosine_scale=float(classifier.scale.detach()) if classifier else None,
        info=info,
        query_only=None if images.query_only is None else images.query_only[rows],
    )


def _chunk(work: Path, start: int) -> Path:
    return work / f"{start:09d}.safetensors"
