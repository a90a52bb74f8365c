"""What an extraction sees of each picture: the whole at one side or several, mirrored, in crops."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wdae import backbones
from wdae.backbones.embed import embed, embed_crops, mean_view
from wdae.data.augment import AugmentConfig
from wdae.errors import DataError
from wdae.extract.config import ExtractConfig
from wdae.runtime.randomness import derive_seed
from wdae.stage1.model_file import Stage1Model

Rows = np.ndarray[Any, np.dtype[np.int64]]
Read = Callable[[int, int, int], tuple[Tensor, Rows]]
"""Side, start and stop to pictures uint8 ``[n, 3, side, side]`` with their numbers in the set."""


class Look:
    """How each picture is seen: whole at every side, mirrored too where asked for, and in crops.

    Args:
        sides: of the whole pictures; crops are cut from the largest and seen at the first.
    """

    def __init__(
        self,
        config: ExtractConfig,
        backbone: backbones.Backbone,
        model: Stage1Model | None,
        sides: Sequence[int],
        device: torch.device,
    ) -> None:
        self.config, self.backbone, self.device = config, backbone, device
        self.wholes = {side: augment_of(model, side) for side in sides}
        changes: dict[str, Any] = {"crop": "resized", "area": config.crop_area}
        changes |= dict.fromkeys(("brightness", "contrast", "saturation"), 0.0)
        self.crop = self.wholes[sides[0]].model_copy(update=changes)
        self.seed = seed_of(config, model)

    def at(self, read: Read, start: int, stop: int) -> tuple[Tensor, Rows, float]:
        """Features of some pictures, their numbers in the set, and the seconds of the embedding alone."""
        views: list[Tensor] = []
        numbers: dict[int, Rows] = {}
        seconds = 0.0
        largest = max(self.wholes)
        for side, augment in self.wholes.items():  # Side after side: cuDNN chooses its algorithms by shape.
            chunk, numbers[side] = read(side, start, stop)
            chunk = chunk.to(self.device)
            _wait(self.device)
            began = time.monotonic()
            mirrored = self.config.flip_average
            views.append(embed(self.backbone, chunk, augment, flip_average=mirrored, **self._how))
            if side == largest and self.config.crops:
                drawn = torch.Generator().manual_seed(derive_seed(self.seed, "crops", start))
                count = self.config.crops
                views.append(embed_crops(self.backbone, chunk, self.crop, count, drawn, **self._how))
            _wait(self.device)
            seconds += time.monotonic() - began
        same_rows(numbers)
        return mean_view(views), next(iter(numbers.values())), seconds

    @property
    def _how(self) -> dict[str, Any]:
        config = self.config
        return {
            "device": self.device,
            "batch": config.batch,
            "precision": config.precision,
            "compiled": config.compile,
        }


def augment_of(model: Stage1Model | None, side: int) -> AugmentConfig:
    """How whole pictures of a side are prepared for the model, or for a backbone of somebody else."""
    if model is None:
        return AugmentConfig(size=side)
    return AugmentConfig(size=side, mean=tuple(model.card["mean"]), std=tuple(model.card["std"]))


def seed_of(config: ExtractConfig, model: Stage1Model | None) -> int:
    """As the recipe says, or as in the model's training."""
    if config.seed is not None:
        return config.seed
    return int(model.card["recipe"].get("seed", 0)) if model else 0


def same_rows(rows: Mapping[int, Rows]) -> None:
    """Refuse pictures that could be read at one side and not at another: their features would be mixed up."""
    first, *others = rows
    for side in others:
        if odd := np.setxor1d(rows[first], rows[side]).tolist():
            raise DataError(
                f"{len(odd)} pictures (the first: number {odd[0]}) could be read at {first} or {side} pixels,"
                " not at both; the files changed meanwhile, or their disk is failing: try again"
            )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
