"""The views that an extraction embeds of each picture: whole at one side or several, mirrored, crops."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wdae import backbones
from wdae.backbones.embed import embed, embed_crops, mean_view
from wdae.backbones.preprocessing import Preprocessing
from wdae.config.augment import AugmentConfig
from wdae.errors import DataError
from wdae.extract.config import ExtractConfig
from wdae.runtime.randomness import derive_seed
from wdae.stage1.model_file import Stage1Model

Rows = np.ndarray[Any, np.dtype[np.int64]]
Read = Callable[[int, int, int], tuple[Tensor, Rows]]
"""Side, start and stop to pictures uint8 ``[n, 3, side, side]`` with their indices in the set."""


class Views:
    """The views of each picture, and the mean of their features.

    Args:
        rule: how the backbone wants its pictures.
        sides: of the whole pictures; crops are cut from the largest and resized to the first.
        seed: draws crops.
    """

    def __init__(
        self,
        config: ExtractConfig,
        backbone: backbones.Backbone,
        rule: Preprocessing,
        sides: Sequence[int],
        device: torch.device,
        seed: int,
    ) -> None:
        self.config, self.backbone, self.device, self.seed = config, backbone, device, seed
        mean, std = ([value / rule.value_range for value in values] for values in (rule.mean, rule.std))
        self.whole = {side: AugmentConfig(size=side, mean=tuple(mean), std=tuple(std)) for side in sides}
        changes: dict[str, Any] = {"crop": "resized", "area": config.crop_area}
        changes |= dict.fromkeys(("brightness", "contrast", "saturation"), 0.0)
        self.crop = self.whole[sides[0]].model_copy(update=changes)

    def features(self, read: Read, start: int, stop: int) -> tuple[Tensor, Rows, float]:
        """Features of some pictures, their indices in the set, and the seconds of the embedding alone."""
        config = self.config
        how: dict[str, Any] = {"device": self.device, "batch": config.batch}
        how |= {"precision": config.precision, "compiled": config.compile}
        views: list[Tensor] = []
        indices: dict[int, Rows] = {}
        seconds = 0.0
        for side, augment in self.whole.items():  # Side after side: cuDNN chooses its algorithms by shape.
            chunk, indices[side] = read(side, start, stop)
            chunk = chunk.to(self.device)
            _wait(self.device)
            began = time.monotonic()
            views.append(embed(self.backbone, chunk, augment, flip_average=config.flip_average, **how))
            if side == max(self.whole) and config.crops:
                drawn = torch.Generator().manual_seed(derive_seed(self.seed, "crops", start))
                views.append(embed_crops(self.backbone, chunk, self.crop, config.crops, drawn, **how))
            _wait(self.device)
            seconds += time.monotonic() - began
        check_same_rows(indices)
        return mean_view(views), next(iter(indices.values())), seconds


def seed_of(config: ExtractConfig, model: Stage1Model | None) -> int:
    """The recipe's seed, or that of the model's training."""
    if config.seed is not None:
        return config.seed
    return int(model.card["recipe"].get("seed", 0)) if model else 0


def check_same_rows(rows: Mapping[int, Rows]) -> None:
    """Refuse pictures that could be read at one side and not at another: features would be mixed up."""
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
