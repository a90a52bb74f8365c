"""The backbone and the ready model of the package: the real ones, and small ones made by the same script."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import wdae
from embed_backbone import embed
from PIL import Image

from wdae.bank import FeatureBank
from wdae.calibration.outlier_pictures import draw_outliers
from wdae.classifier import load, picture_backbone
from wdae.classifier.embedded import embedded_backbone, embedded_model
from wdae.classifier.predictions import predictions
from wdae.classifier.summary import unknown_in_words
from wdae.config.shipped import ASSETS
from wdae.errors import ModelError
from wdae.estimator import FewShotClassifier
from wdae.extract.run import run_extraction
from wdae.stage1.model_file import load_model
from wdae.stage1.run import run_pretraining

SIDE = 16
SMALL = {
    "backbone": "conv4-64",
    "backbone_options": {"image_size": SIDE},
    "epochs": 2,
    "batch": 32,
    "augment.padding": 2,
    "validation.every": 2,
    "validation.episodes": 20,
    "precision": "float32",
}
QUICK = {
    "denoiser.hidden": 16,
    "training.steps": 5,
    "training.validation_episodes": 20,
    "evaluation.step_episodes": 20,
    "space.choice_episodes": 20,
}


def draw(folder: Path, colours: dict[str, tuple[int, int, int]], count: int, seed: int) -> Path:
    """``folder/NAME/i.png``: a colour of each class, under noise."""
    rng = np.random.default_rng(seed)
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = np.array(colour) + rng.normal(0, 12, (20, 24, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def colours(n: int, seed: int) -> dict[str, tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    return {f"colour {seed}-{i}": tuple(rng.integers(20, 235, 3).tolist()) for i in range(n)}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package ships, small: trained for a few steps on drawn pictures."""
    root = tmp_path_factory.mktemp("shipped")
    draw(root / "data" / "base", colours(13, 1), 12, seed=1)
    draw(root / "data" / "validation", colours(5, 2), 12, seed=2)
    draw(root / "data" / "novel", colours(5, 3), 12, seed=3)
    from wdae.config import load as recipe
    from wdae.extract.config import ExtractConfig
    from wdae.stage1.config import Stage1Config

    where = {"data.path": root / "data", "data.size": SIDE, "data.held_out": 4, "data.cache_dir": root / "c"}
    stage1 = recipe(Stage1Config, None, {**SMALL, **where})
    run_pretraining(stage1, root / "run", device="cpu", model_dtype="float16")
    options = {"data": root / "data", "model": root / "run" / "model", "cache_dir": root / "c"}
    extract = recipe(ExtractConfig, None, {**options, "precision": "float32"})
    run_extraction(extract, root / "bank", device="cpu")
    embed(FeatureBank.open(root / "bank"), root / "resnet12", root / "run" / "model", QUICK, episodes=20)
    return root / "resnet12"


@pytest.fixture
def small(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(picture_backbone, "BACKBONE", shipped)
    return shipped


def test_the_card_names_no_path_of_the_machine(small: Path) -> None:
    for file in ("model.json", "ready/model.json", "README.md"):
        assert str(small.parent) not in (small / file).read_text()
    assert json.loads((small / "model.json").read_text())["recipe"]["data"]["held_out"] == 4


def test_every_figure_of_the_model_card_is_measured(small: Path) -> None:
    text = (small / "README.md").read_text()
    assert "{" not in text and "2 epochs; of each round" in " ".join(text.split())
    for start in (
        "| 5 validation |",
        "| 5 novel |",
        "| wdae-gnn+ |",
        "| balanced initial estimate |",
        "| 1 |",
    ):
        row = next(line for line in text.splitlines() if line.startswith(start))
        assert row.count("±") == row.count("%") >= 2


def test_another_side_leaves_the_weights_as_they_are(small: Path, tmp_path: Path) -> None:
    """Models name their digest: those learned at the side before go on working."""
    shutil.copytree(small, tmp_path / "resnet12")
    bank = FeatureBank.open(small.parent / "bank")
    bank = replace(bank, info={**bank.info, "sizes": [SIDE + 4]})
    with pytest.raises(ModelError, match="extract those"):
        embed(bank, tmp_path / "resnet12", recipe=QUICK, episodes=20)
    embed(bank, tmp_path / "resnet12", episodes=20, same_method=True, side=SIDE + 4)
    card, before = (load_model(folder).card for folder in (tmp_path / "resnet12", small))
    assert card["image_size"] == SIDE + 4 and card["files"] == before["files"]
    ready = load(tmp_path / "resnet12" / "ready").backbone
    assert ready is not None and ready.image_size == SIDE + 4
    model = load(small / "ready")  # as learned before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture_backbone, "BACKBONE", tmp_path / "resnet12")
        picture = next((small.parent / "data" / "base").rglob("*.png"))
        assert model.backbone is not None and model.backbone.image_size == SIDE
        found = model.backbone.features([picture])
    again = load(small / "ready").backbone
    assert again is not None and torch.equal(found, again.features([picture]))


def test_the_backbone_says_what_it_is(small: Path) -> None:
    backbone = embedded_backbone()
    assert backbone.image_size == SIDE and backbone.dim == 64 and len(backbone.class_names) == 13
    assert len(backbone.mean) == len(backbone.std) == 3
    assert not backbone.network.training


def test_features_of_files_are_those_of_the_bank(small: Path) -> None:
    """A picture gets the features that the ready model was learned from."""
    bank = FeatureBank.open(small.parent / "bank")
    name = bank.class_names[0]
    files = sorted((small.parent / "data" / "base" / name).glob("*.png"))
    found = embedded_backbone().features(files)
    assert found.shape == (12, 64)
    unit = torch.nn.functional.normalize(found)
    wanted = torch.nn.functional.normalize(bank.features[bank.labels == 0].float())
    assert float((unit @ wanted.T).amax(1).min()) > 0.999  # weights travelled in half precision


def test_five_photos_of_something_new_in_two_commands(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = draw(tmp_path / "photos", {"okapi": (250, 5, 250)}, 8, seed=9) / "okapi"
    files = sorted(new.glob("*.png"))
    model = tmp_path / "model"
    assert wdae("learn", "-o", model) == 0
    assert "13 base, 0 added" in capsys.readouterr().out
    assert wdae("add", model, "--class", "okapi", *files[:5]) == 0
    assert not (model / "backbone.safetensors").exists()
    capsys.readouterr()
    assert wdae("predict", model, *files[5:], "--json", "--top", "5") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["predictions"][0]["class"] for line in lines] == ["okapi"] * 3
    assert wdae("explain", model, "okapi") == 0
    assert wdae("evaluate", model, small.parent / "data" / "base") == 0
    assert wdae("export", model, "--to", "onnx") == 0
    assert wdae("undo", model) == 0
    assert load(model).added == ()


def test_the_ready_model_as_an_estimator(small: Path, tmp_path: Path) -> None:
    from wdae.classifier import save

    save(embedded_model(), tmp_path / "model")
    estimator = FewShotClassifier.load(tmp_path / "model")
    files = sorted(draw(tmp_path / "photos", {"okapi": (250, 5, 250)}, 6, seed=9).glob("*/*.png"))
    rows = embedded_backbone().features(files).numpy()
    estimator.add_classes(rows[:3], ["okapi"] * 3)
    assert estimator.predict(rows[3:]).tolist() == ["okapi"] * 3


def test_half_precision_of_the_denoiser_does_not_show(small: Path, tmp_path: Path) -> None:
    from wdae.classifier import learn

    bank = FeatureBank.open(small.parent / "bank")
    whole = learn(bank, recipe=QUICK)
    half = embedded_model()
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for model in (whole, half):
        model.add({"okapi": rows})
    torch.testing.assert_close(half.head.matrix, whole.head.matrix, rtol=1e-2, atol=1e-2)
    assert half.base.weights.dtype == torch.float32


def test_prior_and_refinement_of_the_ready_model_can_be_chosen(small: Path, tmp_path: Path) -> None:
    assert wdae("learn", "-o", tmp_path / "model", "--novel-share", "0.1", "--refine-base") == 0
    base = load(tmp_path / "model").base
    assert base.calibration.novel_share == 0.1 and base.denoiser is not None and base.denoiser.refine_base


def test_what_is_learned_already_cannot_be_set(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wdae("learn", "-o", tmp_path / "model", "--training.steps", "5") == 2
    assert "recipe cannot be set" in capsys.readouterr().err
    assert wdae("learn", "-o", tmp_path / "model", "--backbone", "timm:resnet18") == 2
    assert "nothing to learn from with backbone timm:resnet18" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_of_ones_own_classes_names_the_backbone_and_copies_it_not(
    small: Path, tmp_path: Path
) -> None:
    photos = draw(tmp_path / "photos", colours(5, 3), 6, seed=3)
    path = tmp_path / "model"
    assert wdae("learn", photos, "-o", path, "--backbone", "embedded") == 0
    assert not (path / "backbone.safetensors").exists()
    back = load(path)
    assert back.backbone is not None and back.backbone.image_size == SIDE
    assert (
        wdae("add", path, "--class", "new", *sorted(draw(tmp_path, {"n": (250, 5, 250)}, 2, 4).glob("n/*")))
        == 0
    )
    assert wdae("predict", path, photos) == 0


def test_features_with_the_backbone_they_came_from(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, run_folder = small.parent / "bank", small.parent / "run"
    words = ("--method", "initial-estimate")
    assert wdae("learn", bank, "-o", tmp_path / "model", "--backbone", run_folder, *words) == 0
    photos = draw(tmp_path / "photos", colours(1, 3), 2, seed=3)
    assert wdae("predict", tmp_path / "model", photos) == 0
    np.savez(
        tmp_path / "other.npz", features=np.random.default_rng(0).normal(size=(20, 7)), labels=[0, 1] * 10
    )
    assert wdae("learn", tmp_path / "other.npz", "-o", tmp_path / "b", "--backbone", "embedded", *words) == 2
    assert "gives features of size 64" in capsys.readouterr().err


def test_another_backbone_than_the_models_is_refused(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wdae.stage1.model_file import write_model
    from wdae.storage.records import read_json
    from wdae.storage.tensors import load_tensors

    assert wdae("learn", "-o", tmp_path / "model") == 0
    shutil.copytree(small, tmp_path / "newer")
    tensors, card = load_tensors(small / "model.safetensors"), read_json(small / "model.json")
    write_model(tmp_path / "newer", {key: value * 2 for key, value in tensors.items()}, card)
    monkeypatch.setattr(picture_backbone, "BACKBONE", tmp_path / "newer")
    picture = next((small.parent / "data" / "base").rglob("*.png"))
    assert wdae("predict", tmp_path / "model", picture) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "shipped with an earlier wdae" in said and "wdae learn -o NEW" in said
    np.save(tmp_path / "features.npy", np.ones((2, 64), dtype=np.float32))
    assert wdae("predict", tmp_path / "model", tmp_path / "features.npy") == 0


def test_a_copy_without_a_backbone_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(picture_backbone, "BACKBONE", tmp_path / "nothing")
    with pytest.raises(ModelError, match="no backbone inside"):
        embedded_backbone()
    with pytest.raises(ModelError, match="no ready model inside"):
        embedded_model()


@pytest.mark.skipif(
    not (picture_backbone.BACKBONE / "ready").is_dir(),
    reason="this checkout has no trained backbone inside",
)
class TestWhatShips:
    def test_the_backbone_is_small_and_knows_64_classes(self) -> None:
        inside = picture_backbone.BACKBONE.rglob("*")
        assert sum(file.stat().st_size for file in inside if file.is_file()) <= 23e6  # with the ready model
        backbone = embedded_backbone()
        assert backbone.image_size == 72 and backbone.dim == 400 and len(backbone.class_names) == 64
        assert "house finch" in backbone.class_names

    def test_everything_that_ships_fits_a_wheel(self) -> None:
        inside = [file for file in ASSETS.rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in inside) <= 35e6

    def test_the_ready_model_belongs_to_the_backbone(self, tmp_path: Path) -> None:
        model = embedded_model()
        assert model.base.names == embedded_backbone().class_names
        assert model.base.denoiser is not None and model.base.calibration.offsets
        assert 0.5 < model.base.calibration.figures["accuracy_base"] < 1
        photos = draw(tmp_path, {"sky": (120, 170, 250), "coal": (20, 20, 22)}, 3, seed=0)
        assert model.backbone is not None
        model.add(
            {name: model.backbone.features(sorted((photos / name).glob("*"))) for name in ("sky", "coal")}
        )
        queries = model.backbone.features(
            sorted((draw(tmp_path / "t", {"sky": (120, 170, 250)}, 2, 5)).rglob("*.png"))
        )
        assert [model.names[c] for c in model.head.best(queries).tolist()] == ["sky", "sky"]

    def test_there_is_a_model_card(self) -> None:
        text = (picture_backbone.BACKBONE / "README.md").read_text()
        for word in ("MiniImageNet", "recipe", "Licence", "accuracy", "20 novel", "Not in benchmarks"):
            assert word in text


def test_the_ready_model_tells_pictures_of_nothing(tmp_path: Path) -> None:
    model = embedded_model()
    assert model.base.detector is not None and "never seen" in unknown_in_words(
        model.base.calibration.figures, True
    )
    assert model.backbone is not None
    for kind, files in draw_outliers(tmp_path, 4, seed=99).items():
        found = predictions(model, model.backbone.features(files))
        assert sum(one.unknown for one in found) >= 3, kind
