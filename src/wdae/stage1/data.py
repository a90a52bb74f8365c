"""The pictures of stage 1, decoded and on the device, or to be streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from wdae.data import ImageSet, PixelArray, hold_out, pixels
from wdae.data.image_set import held_out_digests
from wdae.data.layouts import open_dataset
from wdae.errors import DataError
from wdae.parts import Part
from wdae.runtime.distributed import Team
from wdae.stage1.batches import Batches, ResidentBatches, StreamedBatches
from wdae.stage1.config import DataConfig, Stage1Config

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Pictures ``[M, 3, S, S]`` uint8 and their labels ``[M]``, numbered from 0 within the part."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, eq=False)
class Stage1Data:
    """Training pictures, and those that training is validated on.

    Args:
        train: pictures on the device, or the data set and the rows of it to stream.
        class_names: of the base classes, in the order of the labels of ``train`` and ``held_out``.
        unseen: names of the validation and novel classes, which nothing may be learned from.
        held_out_digests: of each class that pictures were drawn of to be held out, which ones.
    """

    train: LabelledImages | tuple[ImageSet, Rows, torch.Tensor]
    validation: LabelledImages | None
    held_out: LabelledImages | None
    class_names: tuple[str, ...]
    unseen: frozenset[str] = frozenset()
    held_out_digests: Mapping[str, str] = field(default_factory=dict)

    def batches(self, config: Stage1Config, team: Team) -> Batches:
        """This process's share of every batch."""
        if isinstance(self.train, LabelledImages):
            train = self.train
            return ResidentBatches(train.images, train.labels, config, rank=team.rank, size=team.size)
        images, rows, labels = self.train
        return StreamedBatches(images, rows, labels, config, team.device, rank=team.rank, size=team.size)


def open_images(config: DataConfig, seed: int) -> ImageSet:
    """The data set with its parts as the recipe asks; the same seed holds out the same images."""
    images = open_dataset(
        config.path, layout=config.layout, reading=config.reading, allow_missing=config.allow_missing
    )
    return assign_parts(images, config.classes, config.held_out, config.drawn_with(seed))


def assign_parts(images: ImageSet, classes: str, held_out: int, seed: int) -> ImageSet:
    """Make validation classes base classes where asked, and hold out ``held_out`` images a base class."""
    if classes == "base+validation":
        parts = images.parts.copy()
        joining = parts == Part.VALIDATION.code
        parts[joining] = Part.BASE_TRAIN.code
        if images.query_only is not None:
            parts[joining & images.query_only] = Part.BASE_HELD_OUT.code
        images = replace(images, parts=parts)
    return hold_out(images, held_out, seed) if held_out else images


def load_data(config: Stage1Config, device: torch.device) -> Stage1Data:
    """Decode what training needs (novel classes are left out) and copy it to the device."""
    images = open_images(config.data, config.seed)
    base = _classes(images.labels, images.parts, Part.BASE_TRAIN)
    if len(base) < 2:
        raise DataError(f"{config.data.path}: stage 1 needs at least 2 base classes, found {len(base)}")
    wanted = [images.rows(Part.BASE_HELD_OUT), _some(images, config.validation.per_class)]
    if not config.data.stream:
        wanted.append(images.rows(Part.BASE_TRAIN))
    array = _decoded(images, np.sort(np.concatenate(wanted)), config.data)
    train: LabelledImages | tuple[ImageSet, Rows, torch.Tensor] | None
    where = device
    if config.data.stream:
        rows = images.rows(Part.BASE_TRAIN)
        train = (images, rows, torch.from_numpy(np.searchsorted(base, images.labels[rows])))
        where = torch.device("cpu")
    else:
        train = _part(array, Part.BASE_TRAIN, base, device)
    if train is None:
        raise DataError(f"{config.data.path}: no base-train pictures; check the split")
    return Stage1Data(
        train=train,
        validation=_part(array, Part.VALIDATION, None, where),
        held_out=_part(array, Part.BASE_HELD_OUT, base, where),
        class_names=tuple(images.class_names[label] for label in base),
        unseen=frozenset(images.class_names) - {images.class_names[label] for label in base},
        held_out_digests=held_out_digests(images) if config.data.held_out else {},
    )


def _decoded(images: ImageSet, rows: Rows, config: DataConfig) -> PixelArray | None:
    if not len(rows):
        return None
    return pixels(
        images.select(rows), config.size, cache_dir=config.cache_dir, skip_broken=config.skip_broken
    )


def _classes(labels: Rows, parts: npt.NDArray[np.uint8], part: Part) -> list[int]:
    """The classes of a part, ascending; the two base parts have the same ones."""
    kinds = (Part.BASE_TRAIN, Part.BASE_HELD_OUT) if part.is_base else (part,)
    found: list[int] = np.unique(labels[np.isin(parts, [kind.code for kind in kinds])]).tolist()
    return found


def _some(images: ImageSet, per_class: int | None) -> Rows:
    """Validation pictures, at most so many a class: the first ones."""
    rows = images.rows(Part.VALIDATION)
    if per_class is None or not len(rows):
        return rows
    labels = images.labels[rows]
    return np.sort(np.concatenate([rows[labels == label][:per_class] for label in np.unique(labels)]))


def _part(
    array: PixelArray | None, part: Part, classes: list[int] | None, device: torch.device
) -> LabelledImages | None:
    rows = array.rows(part) if array is not None else np.empty(0, dtype=np.int64)
    if array is None or not len(rows):
        return None
    known = _classes(array.labels, array.parts, part) if classes is None else classes
    labels = np.searchsorted(known, array.labels[rows])
    return LabelledImages(array.tensor(device, rows), torch.from_numpy(labels).to(device))
