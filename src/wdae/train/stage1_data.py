"""The pictures of stage 1, decoded and on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from wdae.bank import Part
from wdae.data import ImageSet, PixelArray, hold_out, pixels
from wdae.data.layouts import open_dataset
from wdae.errors import DataError
from wdae.train.stage1_config import DataConfig
from wdae.train.validation import Labelled


@dataclass(frozen=True, eq=False)
class Stage1Data:
    """Training pictures, and those to watch the training by.

    Args:
        class_names: of the base classes, in the order of the labels of ``train`` and ``held_out``.
    """

    train: Labelled
    validation: Labelled | None
    held_out: Labelled | None
    class_names: tuple[str, ...]


def open_images(config: DataConfig, seed: int) -> ImageSet:
    """The data set with its parts as the recipe wants them; the same seed holds out the same images."""
    images = open_dataset(config.path, layout=config.layout)
    if config.classes == "base+validation":
        parts = images.parts.copy()
        parts[parts == Part.VALIDATION.code] = Part.BASE_TRAIN.code
        images = replace(images, parts=parts)
    return hold_out(images, config.held_out, seed) if config.held_out else images


def load_data(config: DataConfig, seed: int, device: torch.device) -> Stage1Data:
    """Decode what training needs (novel classes are not even decoded) and put it on the device."""
    images = open_images(config, seed)
    seen = images.select(np.flatnonzero(images.parts != Part.NOVEL.code).astype(np.int64))
    array = pixels(seen, config.size, cache_dir=config.cache_dir, skip_broken=config.skip_broken)
    base = np.unique(array.labels[np.isin(array.parts, (Part.BASE_TRAIN.code, Part.BASE_HELD_OUT.code))])
    if len(base) < 2:
        raise DataError(f"{config.path}: stage 1 needs at least 2 base classes, found {len(base)}")
    train = _part(array, Part.BASE_TRAIN, device)
    if train is None:
        raise DataError(f"{config.path}: no base-train pictures; check the split")
    return Stage1Data(
        train=train,
        validation=_part(array, Part.VALIDATION, device),
        held_out=_part(array, Part.BASE_HELD_OUT, device),
        class_names=tuple(array.class_names[label] for label in base.tolist()),
    )


def _part(array: PixelArray, part: Part, device: torch.device) -> Labelled | None:
    rows = array.rows(part)
    if not len(rows):
        return None
    kinds = (Part.BASE_TRAIN, Part.BASE_HELD_OUT) if part.is_base else (part,)
    classes = np.unique(array.labels[np.isin(array.parts, [kind.code for kind in kinds])])
    labels = np.searchsorted(classes, array.labels[rows])
    return Labelled(array.tensor(device, rows), torch.from_numpy(labels).to(device))
