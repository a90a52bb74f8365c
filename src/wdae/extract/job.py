"""What every process of an extraction works with: a backbone, the pictures, and how they are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wdae import backbones
from wdae.backbones.embed import folded
from wdae.backbones.packaged import LITE, packaged
from wdae.backbones.preprocessing import PREPROCESSING, Preprocessing
from wdae.bank import FeatureBank
from wdae.bank.format import stream_bank
from wdae.config.shipped import EMBEDDED
from wdae.data import ImageSet, pixels
from wdae.data.findings import warn_left_out
from wdae.data.image_set import held_out_digests
from wdae.data.layouts import open_dataset
from wdae.data.source import content_digest
from wdae.data.stream import stream
from wdae.errors import DataError, ModelError
from wdae.extract.config import ExtractConfig
from wdae.extract.views import Read, Rows, Views, check_same_rows, seed_of
from wdae.parts import Part
from wdae.runtime.device import fast_arithmetic, pick_dtype
from wdae.stage1.data import assign_parts
from wdae.stage1.model_file import WEIGHTS, Stage1Model, load_model
from wdae.storage.files import sha256 as file_sha256
from wdae.storage.records import MAX_CLASSES
from wdae.storage.trust import Trust


class ExtractJob:
    """A backbone and a data set, ready to embed the pictures chunk by chunk.

    Args:
        config: the recipe.
        device: where to compute.
        trust: a backbone of others that the model may name.
        workers: processes that decode; one for each core by default.
        images: the data set, where somebody has opened it already.
    """

    def __init__(
        self,
        config: ExtractConfig,
        device: torch.device,
        trust: Trust = (),
        workers: int | None = None,
        images: ImageSet | None = None,
    ) -> None:
        if config.precision == "auto":
            gpu = device.type == "cuda" and pick_dtype("auto", device) == torch.bfloat16
            config = config.model_copy(update={"precision": "bf16" if gpu else "float32"})
        self.config, self.device, self.workers = config, device, workers
        self.model = load_model(config.trained, trust=trust) if config.trained is not None else None
        if self.model is not None:
            backbone = self.model.network.backbone
        elif config.backbone in LITE:
            backbone = packaged(config.backbone).backbone
        else:
            backbone = backbones.build(config.backbone, **config.backbone_options)
        backbone = backbone.to(device).eval()
        if device.type == "cuda":
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif self.model is not None or config.backbone in LITE:  # ours: a fifth quicker on a CPU
            backbone = folded(backbone)
        if config.compile:
            for stage in backbone.stages:
                stage.compile(dynamic=False)
        rule = Preprocessing.of(self.model.card) if self.model else backbone.preprocessing
        self.sides = config.sizes or (config.size or rule.image_size,)
        self.backbone, self.rule = backbone, rule.changed(side=self.sides[0])
        self.images = _images(config, self.model) if images is None else images
        if len(self.images.class_names) > MAX_CLASSES:
            raise DataError(
                f"{config.data} has {len(self.images.class_names):,} classes; a bank holds {MAX_CLASSES:,} at"
                " most: extract groups of classes into banks of their own"
            )
        # The model whose base classes the pictures are of; None where it gives features alone.
        self.classes_of = None if _has_other_classes(config, self.model, self.images) else self.model
        if self.classes_of is not None:
            _check_classes(self.classes_of, self.images)
        self.read, self.count = self._reader()
        self.views = Views(config, backbone, self.rule, self.sides, device, seed_of(config, self.model))

    @property
    def starts(self) -> range:
        """Where each chunk begins."""
        return range(0, self.count, self.config.chunk)

    def chunk(self, start: int) -> tuple[Tensor, Rows, float]:
        """Features of a chunk, the pictures' numbers in the set, and the seconds of the embedding alone."""
        with fast_arithmetic(self.device):
            return self.views.features(self.read, start, min(start + self.config.chunk, self.count))

    def flops(self) -> int:
        """Of all views of one picture."""
        mirrored = 2 if self.config.flip_average else 1
        whole = mirrored * sum(backbones.forward_flops(self.backbone, side) for side in self.sides)
        return int(whole + self.config.crops * backbones.forward_flops(self.backbone, self.sides[0]))

    def plan(self) -> dict[str, Any]:
        """What features depend on, wherever the files lie: shards of another plan do not fit together."""
        config = self.config
        weights = file_sha256(config.trained / WEIGHTS) if config.trained is not None else ""
        keys = {"backbone_options", "chunk", "flip_average", "precision", "skip_broken"}
        if config.crops:
            keys |= {"crops", "crop_area", "seed"}
        return {
            **config.model_dump(mode="json", include=keys),
            "backbone": config.backbone if config.trained is None else None,
            "weights": weights,
            "preprocessing": self.rule.facts(),
            "sides": list(self.sides),
            "count": self.count,
        }

    def data_set(self) -> str:
        """A digest of the pictures' names, classes and parts."""
        images = self.images
        names = [Path(images.describe(i)).name for i in range(len(images))]
        listed = "\n".join([*images.class_names, "", *names]).encode("utf-8", "surrogateescape")
        return content_digest(listed + images.labels.tobytes() + images.parts.tobytes()).hex()

    def info(self) -> dict[str, Any]:
        """Provenance, for the bank."""
        config, model = self.config, self.model
        info: dict[str, Any] = {
            "source": self.images.name,
            "backbone": model.card["backbone"] if model else config.backbone,
            "flip_average": config.flip_average,
            "sizes": list(self.sides),
            "precision": config.precision,
            PREPROCESSING: self.rule.facts(),
        }
        if config.crops:
            info |= {"crops": config.crops, "crop_area": list(config.crop_area)}
        if self.classes_of is not None:
            info |= {"recipe": self.classes_of.card["recipe"], "figures": self.classes_of.card["figures"]}
        if config.trained is not None:
            info["model_sha256"] = file_sha256(config.trained / WEIGHTS)
        return info

    def save_bank(self, path: Path, features: Callable[[], Iterator[Tensor]], dim: int, rows: Rows) -> None:
        """Write the bank of all pictures, from their features in parts and their numbers ``[n]``."""
        warn_left_out(self.images, rows, "--skip-broken false")
        facts = {"class_names": self.images.class_names, "info": self.info()}
        scale = self.classifier()[1]
        stream_bank(
            FeatureBank,
            path,
            self.config.dtype,
            features,
            dim,
            self.columns(rows),
            cosine_scale=scale,
            **facts,
        )

    def columns(self, rows: Rows) -> dict[str, Tensor | None]:
        """What a bank has beside features: labels, parts and queries of these pictures, base weights."""
        images = self.images
        return {
            "labels": torch.from_numpy(images.labels[rows]).to(torch.int64),
            "parts": torch.from_numpy(images.parts[rows]).to(torch.uint8),
            "query_only": None if images.query_only is None else torch.from_numpy(images.query_only[rows]),
            "base_weights": self.classifier()[0],
        }

    def classifier(self) -> tuple[Tensor | None, float | None]:
        """The base weights that were learned with the backbone, and their scale."""
        if self.classes_of is None:
            return None, None
        classifier = self.classes_of.network.classifier
        return classifier.weight.detach().cpu().float(), float(classifier.scale.detach())

    def _reader(self) -> tuple[Read, int]:
        """How to get some of the pictures at one of the sides, and how many pictures there are."""
        config, images, rule, sides = self.config, self.images, self.rule, self.sides
        if config.stream or not rule.is_plain:  # pixels are cached of plain central squares only

            def streamed(side: int, start: int, stop: int) -> tuple[Tensor, Rows]:
                wanted = np.arange(start, stop, dtype=np.int64)
                square, how = rule.changed(side=side), {"skip_broken": config.skip_broken}
                got = list(stream(images, square, 256, self.workers, rows=wanted, **how))
                if not got:  # nothing could be read
                    return torch.zeros(0, 3, side, side, dtype=torch.uint8), wanted[:0]
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
    if _has_other_classes(config, model, images):
        model, trained = None, {}
    held_out, seed = (0, seed_of(config, model)) if model is None else model.held_out
    held_out = held_out if config.held_out is None else config.held_out
    seed = seed if config.seed is None else config.seed
    if model is not None and config.trained is not None:
        model.refuse_leak(config.trained, held_out, seed)
        if held_out:
            then = assign_parts(images, trained.get("classes", "base"), *model.held_out)
            model.refuse_other_pictures(config.trained, held_out_digests(then))
    return assign_parts(images, trained.get("classes", "base"), held_out, seed)


def _has_other_classes(config: ExtractConfig, model: Stage1Model | None, images: ImageSet) -> bool:
    """Whether the network that ships is asked for features of classes that it has never learned."""
    if model is None or config.backbone != EMBEDDED:
        return False
    return {*model.class_names, *model.class_ids}.isdisjoint(images.class_names)


def _check_classes(model: Stage1Model, images: ImageSet) -> None:
    base = np.unique(images.labels[np.isin(images.parts, (Part.BASE_TRAIN.code, Part.BASE_HELD_OUT.code))])
    found = tuple(images.class_names[label] for label in base.tolist())
    if found not in (model.class_names, model.class_ids):
        odd = sorted(set(found) ^ set(model.class_ids))[:5]
        raise ModelError(
            f"the model was trained on {len(model.class_names)} base classes, the data set has {len(found)}; "
            f"differing: {', '.join(odd) or 'their order'}. Give the data set that the model was trained on"
        )
