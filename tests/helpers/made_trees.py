"""Small drawn pictures in the exact layouts of the three benchmarks, and small settings to run them with."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from wdae.data.splits import load_split

N_BASE, N_VALIDATION, N_NOVEL = 8, 5, 6
SIDE = 16

# Stage 1: a network of a moment. Stage 2: a few steps.
STAGE1 = [
    "backbone=conv4-64",
    "backbone_options={image_size: 16}",
    f"data.size={SIDE}",
    "epochs=2",
    "batch=16",
]
STAGE1 += ["augment.padding=2", "validation.every=2", "validation.episodes=20", "validation.per_class=12"]
STAGE1 += ["precision=float32", "rotation=null", "averaging=null"]
STAGE2 = ["training.steps=4", "training.episodes_per_step=2", "training.n_fake=3", "training.base_queries=6"]
STAGE2 += [
    "evaluation.step_episodes=10",
    "training.queries_per_novel=2",
    "training.validate_every=2",
    "training.validation_episodes=10",
]


def picture(label: int, rng: np.random.Generator) -> Image.Image:
    """Classes differ in colour, under noise."""
    colour = np.random.default_rng(label).uniform(0, 255, 3)
    return Image.fromarray((colour + rng.normal(0, 30, (20, 20, 3))).clip(0, 255).astype(np.uint8))


def folders(root: Path, classes: Sequence[str], per_class: int, seed: int) -> None:
    """``root/CLASS/*.png``."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            picture(hash_of(name), rng).save(root / name / f"{i}.png")


def hash_of(name: str) -> int:
    """The same number for a class wherever its pictures are drawn."""
    return int(name.lstrip("n"))


def mini_imagenet(root: Path) -> Path:
    """``images/`` with three lists; classes of MiniImageNet's split, a few of each part."""
    split, rng = load_split("mini-imagenet"), np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    parts = {
        "train": split.base[:N_BASE],
        "val": split.validation[:N_VALIDATION],
        "test": split.novel[:N_NOVEL],
    }
    for part, classes in parts.items():
        with (root / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("filename", "label"))
            for name in classes:
                for i in range(16):
                    picture(hash_of(name), rng).save(root / "images" / f"{name}-{i}.png")
                    writer.writerow((f"{name}-{i}.png", name))
    return root


def tiered_imagenet(root: Path) -> Path:
    """``train/``, ``val/``, ``test/`` with a folder a class."""
    split = load_split("tiered-imagenet")
    folders(root / "train", split.base[:N_BASE], 12, 1)
    folders(root / "val", split.validation[:N_VALIDATION], 12, 2)
    folders(root / "test", split.novel[:N_NOVEL], 12, 3)
    return root


def imagenet_fs(root: Path) -> Path:
    """ILSVRC's ``train/`` and ``val/``: half of the base classes count in the test."""
    split = load_split("imagenet-fs")
    base = (*split.base_test[: N_BASE // 2], *split.base_validation[: N_BASE // 2])
    classes = (*base, *split.validation[:N_VALIDATION], *split.novel[:N_NOVEL])
    folders(root / "train", classes, 22, 1)
    folders(root / "val", classes, 3, 2)
    return root
