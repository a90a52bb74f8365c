"""From drawn pictures to a table: stage 1, extraction, stage 2, evaluation, by the commands a user gives."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import succeeds
from PIL import Image, ImageDraw

from wdae import FeatureBank, Part

COLOURS = ("red", "green", "blue", "orange")
SHAPES = ("disc", "square", "bar", "cross")
PER_CLASS = {"base-train": 30, "validation": 24, "novel": 24}


def draw(shape: str, colour: str, rng: np.random.Generator) -> Image.Image:
    """A coloured shape somewhere on a noisy ground."""
    ground = rng.integers(0, 80, (32, 32, 3), dtype=np.uint8)
    picture = Image.fromarray(ground)
    pen = ImageDraw.Draw(picture)
    x, y, r = rng.integers(8, 24), rng.integers(8, 24), rng.integers(4, 8)
    if shape == "disc":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "bar":
        pen.rectangle((x - 1, y - r, x + 1, y + r), fill=colour)
    else:
        pen.line((x - r, y - r, x + r, y + r), fill=colour, width=2)
        pen.line((x - r, y + r, x + r, y - r), fill=colour, width=2)
    return picture


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """16 classes: 8 base, 4 validation, 4 novel, named in a CSV list."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    folder.mkdir()
    classes = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    order = rng.permutation(len(classes))
    rows = []
    for place, index in enumerate(order):
        part = "base-train" if place < 8 else "validation" if place < 12 else "novel"
        shape, colour = classes[index]
        for i in range(PER_CLASS[part]):
            name = f"{colour}-{shape}-{i}.png"
            draw(shape, colour, rng).save(folder / name)
            rows.append((name, f"{colour} {shape}", part))
    with (folder / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "part"))
        writer.writerows(rows)
    return folder / "list.csv"


def test_from_pictures_to_a_table(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    stage1 = ["--data.path", pictures, "--data.size", 32, "--data.held_out", 9, "--backbone", "conv4-64"]
    stage1 += ["--backbone_options.image_size", 32, "--epochs", 6, "--batch", 24, "--augment.padding", 2]
    stage1 += ["--validation.every", 6, "--validation.episodes", 50, "--device", "cpu"]
    succeeds("pretrain", *stage1, "-o", tmp_path / "stage1")
    succeeds(
        "extract",
        "--data",
        pictures,
        "--model",
        tmp_path / "stage1/model",
        "-o",
        tmp_path / "bank",
        "--device",
        "cpu",
    )
    bank = FeatureBank.open(tmp_path / "bank")
    assert bank.n_base == 8
    assert sum(bank.counts(Part.BASE_HELD_OUT)) == 8 * 9
    assert bank.base_weights is not None
    training = ["--training.n_fake", 3, "--training.steps", 10, "--training.episodes_per_step", 4]
    training += ["--training.base_queries", 10, "--training.validate_every", 5, "--denoiser.hidden", 16]
    training += ["--training.validation_episodes", 20, "--evaluation.ways", 3, "--evaluation.episodes", 200]
    training += ["--evaluation.step_episodes", 50, "--device", "cpu"]
    succeeds("train", "--bank", tmp_path / "bank", "-o", tmp_path / "stage2", *training)
    capsys.readouterr()
    words = ["--ways", 3, "--episodes", 300, "--shots", 5, "--device", "cpu", "--json"]
    succeeds("evaluate", tmp_path / "stage2", "--bank", tmp_path / "bank", *words)
    by_method = {entry["method"]: entry["metrics"] for entry in json.loads(capsys.readouterr().out)}
    for metrics in by_method.values():  # colours and shapes are told apart far better than by chance
        assert metrics["novel"]["mean"] > 0.45
        assert metrics["all"]["mean"] > 0.2
