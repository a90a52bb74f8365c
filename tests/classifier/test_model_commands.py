"""The commands for pictures, from folders to answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import wdae
from tiny_backbone import paint

from wdae.classifier import load

BASE = ["red", "green", "blue", "yellow", "violet"]
BACKBONE = "tiny_backbone:factory"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    paint(root / "base", BASE, 10)
    paint(root / "new", ["orange", "black"], 3, seed=1)
    paint(root / "test", [*BASE, "orange", "black"], 4, seed=2)
    return root


@pytest.fixture(scope="module")
def learned(photos: Path) -> Path:
    path = photos / "model"
    assert wdae("learn", photos / "base", "-o", path, "--backbone", BACKBONE, "--training.steps", "5") == 0
    return path


@pytest.fixture
def model(learned: Path, tmp_path: Path) -> Path:
    """Each test changes a copy of its own."""
    return Path(shutil.copytree(learned, tmp_path / "model"))


def test_learn_add_predict_remove_undo(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wdae("add", model, photos / "new") == 0
    assert wdae("add", model, "--class", "grey", *sorted(paint(tmp_path, ["grey"], 2).glob("*/*.png"))) == 0
    capsys.readouterr()
    pictures = sorted((photos / "test" / "orange").glob("*.png"))
    assert wdae("predict", model, *pictures, "--json", "--top", "3") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["item"] for line in lines] == list(map(str, pictures))
    assert all(line["predictions"][0]["class"] == "orange" for line in lines)
    assert all(len(line["predictions"]) == 3 for line in lines)
    assert all(0 < line["predictions"][0]["probability"] <= 1 for line in lines)

    assert wdae("evaluate", model, photos / "test", "--json", "-o", tmp_path / "out") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]["accuracy"] > 0.8
    assert report["figures"]["base_before_adding"] == report["figures"]["base_among_base"]
    assert sum(map(sum, report["confusion"]["counts"])) == 28
    assert (tmp_path / "out" / "confusion.csv").read_text().startswith("true \\ predicted,")
    assert wdae("evaluate", model, photos / "test") == 0
    assert f"accuracy on all of these: {report['figures']['accuracy']:.1%}\n" in capsys.readouterr().out

    assert wdae("remove", model, "orange", "grey") == 0
    assert load(model).added == ("black",)
    assert wdae("undo", model) == 0
    assert load(model).added == ("black", "orange", "grey")
    assert wdae("undo", model, "--to", "0") == 0
    assert load(model).added == ()
    capsys.readouterr()
    assert wdae("info", model, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["base_classes"] == sorted(BASE)
    assert [change["in_effect"] for change in facts["history"]] == [False, False, False]
    assert facts["backbone"]["backbone"] == "tiny_backbone:factory"
    assert wdae("info", model) == 0
    assert "5 base, 0 added" in capsys.readouterr().out


def test_folders_of_pictures_stream_through_predict(
    photos: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert wdae("predict", model, photos / "test", photos / "new") == 0
    assert len(capsys.readouterr().out.splitlines()) == 28 + 6


def test_explain_shows_neighbours_and_pictures(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wdae("add", model, photos / "new") == 0
    capsys.readouterr()
    assert wdae("explain", model, "orange", "--picture", tmp_path / "orange.png") == 0
    text = capsys.readouterr().out
    assert "added class, 3 examples" in text and "nearest classes" in text and "1-0.png" in text
    assert (tmp_path / "orange.png").stat().st_size > 5000
    assert wdae("explain", model, "orange", "--json") == 0
    assert wdae("explain", model, "orang") == 2
    assert "did you mean 'orange'?" in capsys.readouterr().err


def test_a_base_class_given_again_is_warned_of(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = sorted(paint(tmp_path, ["red"], 4, seed=11).glob("*/*.png"))
    assert wdae("add", model, "--class", "crimson", *again) == 0
    assert "nearly coincides with 'red'" in capsys.readouterr().err


def test_more_pictures_of_a_known_class(photos: Path, model: Path, tmp_path: Path) -> None:
    assert wdae("add", model, photos / "new") == 0
    more = paint(tmp_path / "more", ["orange", "red"], 2, seed=7)
    assert wdae("add", model, more) == 2
    assert wdae("add", model, more, "--update") == 0
    after = load(model)
    assert after.shots("orange") == 5 and after.shots("red") == 2
    assert after.added == ("black", "orange")


def test_features_instead_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(8, 12))
    draw = lambda c, n: (centres[c] + 0.2 * rng.normal(size=(n, 12))).astype(np.float32)  # noqa: E731
    base = np.concatenate([draw(c, 12) for c in range(6)])
    np.savez(tmp_path / "base.npz", features=base, labels=np.repeat(list("abcdef"), 12))
    np.savez(tmp_path / "new.npz", features=np.concatenate([draw(6, 2), draw(7, 3)]), labels=list("ggiii"))
    np.save(tmp_path / "query.npy", draw(7, 4))
    model = tmp_path / "model"
    assert wdae("learn", tmp_path / "base.npz", "-o", model, "--training.steps", "5") == 0
    assert wdae("add", model, tmp_path / "new.npz") == 0
    capsys.readouterr()
    assert wdae("predict", model, tmp_path / "query.npy", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["predictions"][0]["class"] for line in lines] == ["i"] * 4
    assert wdae("predict", model, __file__) == 2
    assert "no backbone for pictures" in capsys.readouterr().err


def test_a_backbone_trained_on_the_pictures(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model"
    words = ("--train", "conv4-64", "--epochs", "2", "--size", "16", "--training.steps", "5")
    assert wdae("learn", photos / "base", "-o", path, *words) == 0
    learned = load(path)
    assert learned.backbone is not None and learned.backbone.name == "conv4-64"
    assert learned.base.dim == 64
    assert wdae("add", path, photos / "new") == 0
    assert torch.isfinite(load(path).head.matrix).all()


def test_evaluate_says_how_many_pictures_it_was_given(
    photos: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its own examples a model knows nearly all."""
    assert wdae("add", model, photos / "new") == 0
    capsys.readouterr()
    assert wdae("evaluate", model, photos / "new", "--json") == 0
    said = capsys.readouterr()
    assert "warning: 6 of 6 pictures are examples that the model was given" in said.err
    json.loads(said.out)
    assert wdae("evaluate", model, photos / "test") == 0
    assert "was given" not in capsys.readouterr().err


def test_names_are_looked_at_before_pictures_are_read(
    photos: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of pictures need not be read to learn that their folder has the wrong name."""
    for name in ("okapi", "tapir"):
        (tmp_path / "strange" / name).mkdir(parents=True)
        (tmp_path / "strange" / name / "torn.png").write_bytes(b"no picture")
    assert wdae("evaluate", model, tmp_path / "strange") == 2
    said = capsys.readouterr().err
    assert "is called 'okapi'" in said and "and those of 1 other class" in said and "torn" not in said
    (tmp_path / "known" / "red").mkdir(parents=True)
    (tmp_path / "known" / "red" / "torn.png").write_bytes(b"no picture")
    assert wdae("add", model, tmp_path / "known") == 2
    said = capsys.readouterr().err
    assert "exists already" in said and "torn" not in said
