"""Small drawn data for the stage-1 tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from wdae.config import load
from wdae.extract import views
from wdae.extract.config import ExtractConfig
from wdae.stage1.config import Stage1Config
from wdae.stage1.data import LabelledImages, Stage1Data
from wdae.stage1.model_file import save_model
from wdae.stage1.recognition_model import build_recognition_model

SMALL: dict[str, Any] = {
    "data.path": "nowhere",
    "backbone": "wide-resnet",
    "backbone_options": {"depth": 10, "widen": 1, "image_size": 16},
    "epochs": 3,
    "batch": 8,
    "optimiser.learning_rate": 0.05,
    "augment.padding": 2,
    "validation.every": 1,
    "validation.episodes": 50,
    "precision": "float32",
    "log_every": 1,
}


def recipe(**changes: Any) -> Stage1Config:
    """The small recipe with changes; ``__`` stands for a dot."""
    return load(Stage1Config, None, SMALL | {key.replace("__", "."): v for key, v in changes.items()})


def pictures(classes: int, per_class: int, seed: int, side: int = 16) -> np.ndarray:
    """Classes that differ in colour, under noise: uint8 [classes * per_class, side, side, 3]."""
    rng = np.random.default_rng(seed)
    colours = rng.uniform(0, 255, (classes, 1, 1, 1, 3))
    noise = rng.normal(0, 30, (classes, per_class, side, side, 3))
    return (colours + noise).clip(0, 255).astype(np.uint8).reshape(-1, side, side, 3)


def drawn_data(classes: int = 4, per_class: int = 9) -> Stage1Data:
    def part(n: int, seed: int) -> LabelledImages:
        images = torch.from_numpy(pictures(n, per_class, seed)).permute(0, 3, 1, 2)
        return LabelledImages(images, torch.arange(n).repeat_interleave(per_class))

    names = tuple(f"class {c}" for c in range(classes))
    return Stage1Data(part(classes, 1), part(5, 2), part(classes, 1), names)


def drawn_folder(root: Path, per_class: int = 8) -> Path:
    """base/validation/novel folders of PNG files."""
    for part, classes, seed in (("base", 3, 1), ("validation", 5, 2), ("novel", 2, 3)):
        for number, image in enumerate(pictures(classes, per_class, seed, side=20)):
            folder = root / part / f"{part}-{number // per_class}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
    return root


class Interrupted:
    """Counts an extraction's calls of ``embed`` or ``embed_crops``, and interrupts the ``stop_at``-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, stop_at: int = 2) -> None:
        self.made: list[tuple[int, int]] = []
        """How many pictures of which side, call by call."""
        self.stop_at = stop_at
        self._real = getattr(views, name)
        monkeypatch.setattr(views, name, self._call)

    def _call(self, backbone: Any, chunk: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        self.made.append((len(chunk), chunk.shape[-1]))
        if len(self.made) == self.stop_at:
            raise KeyboardInterrupt
        result: torch.Tensor = self._real(backbone, chunk, *args, **options)
        return result

    def go_on(self) -> None:
        """Count anew, and interrupt no more."""
        self.made, self.stop_at = [], 0


def extraction(tmp_path: Path, **changes: Any) -> ExtractConfig:
    """How to extract features of drawn pictures with an untrained model, both made where they are missing."""
    folder, model = tmp_path / "pictures", tmp_path / "model"
    if not folder.exists():
        drawn_folder(folder)
        card: dict[str, Any] = {"backbone": "conv4-64", "backbone_options": {"image_size": 16}}
        card |= {"class_names": ["base-0", "base-1", "base-2"], "image_size": 16, "recipe": {}, "figures": {}}
        card |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
        save_model(model, build_recognition_model("conv4-64", {"image_size": 16}, 3, seed=3), card)
    values: dict[str, Any] = {"data": folder, "backbone": str(model), "chunk": 32}
    values["cache_dir"] = tmp_path / "cache"
    return ExtractConfig(**(values | {"precision": "float32", "batch": 7} | changes))
