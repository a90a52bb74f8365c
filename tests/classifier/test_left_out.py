"""What could not be read is named, always, and does not stop the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_backbone import paint

from wdae.bank import FeatureBank
from wdae.classifier import load
from wdae.cli.app import run_app
from wdae.cli.main import root

NAME = "tiny_backbone:factory"


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder per class with one torn picture, which the tests find by its name."""
    paint(tmp_path / "photos", ["red", "green", "blue"], 6)
    (tmp_path / "photos" / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_learn(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    words += ["--method", "initial-estimate"]
    assert run_app(root(), [*words, "--strict"]) == 2
    assert "torn.png" in capsys.readouterr().err
    assert run_app(root(), words) == 0
    assert "left out, cannot be read" in (said := capsys.readouterr().err) and said.count("torn.png") == 1
    assert int(load(torn / "m", trust=NAME).base.counts.sum()) == 18


@pytest.mark.parametrize("stream", [[], ["--stream", "true"]])
def test_extract(torn: Path, stream: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["extract", "--data", str(torn / "photos"), "-o", str(torn / "bank"), "--backbone", NAME, *stream]
    assert run_app(root(), [*words, "--skip-broken", "false"]) == 2
    assert "torn.png" in capsys.readouterr().err
    assert run_app(root(), words) == 0
    assert capsys.readouterr().err.count("torn.png") == 1
    assert len(FeatureBank.open(torn / "bank").labels) == 18


def test_the_reason_is_named(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also that HEIC, which telephones write, needs an extra."""
    learn = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    assert run_app(root(), [*learn, "--method", "initial-estimate"]) == 0
    assert "torn.png: not a picture that is read" in capsys.readouterr().err
    heic = [torn / "a.heic", torn / "b.heic"]
    for file in heic:
        file.write_bytes(b"\x00\x00\x00\x18ftypheic" + bytes(12))
    words = ["add", str(torn / "m"), "--class", "cat", *map(str, heic)]
    assert run_app(root(), words) == 2
    said = capsys.readouterr().err
    assert "has 0 readable pictures" in said and "a.heic: " in said and "b.heic" not in said
    assert "pip install 'wdae[heic]'" in said
    shown = paint(torn / "new", ["orange"], 2)
    (shown / "orange" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    for words in (["add", str(torn / "m"), str(shown)], ["evaluate", str(torn / "m"), str(shown)]):
        assert run_app(root(), words) == 0
        assert "torn.png: not a picture that is read" in capsys.readouterr().err


def test_pictures_in_folders_inside_a_class_are_named(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class folder holds its pictures itself; others are not passed over in silence."""
    (torn / "photos" / "red" / "torn.png").rename(torn / "torn.png")
    paint(torn / "inside", ["red"], 2, seed=1)
    (torn / "inside" / "red").rename(torn / "photos" / "blue" / "2023")
    (torn / "photos" / "green" / "empty").mkdir()
    (torn / "photos" / "__MACOSX").mkdir()  # as a zip of a Mac is unpacked elsewhere
    words = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    assert run_app(root(), [*words, "--method", "initial-estimate"]) == 0
    said = capsys.readouterr().err
    assert "in folders inside a class's folder" in said and "blue/2023/" in said and "empty" not in said
    assert load(torn / "m", trust=NAME).names == ("blue", "green", "red")
    paint(torn / "new", ["orange"], 2)
    paint(torn / "new" / "orange", ["grey"], 2)
    assert run_app(root(), ["add", str(torn / "m"), str(torn / "new")]) == 0
    assert "new/orange/grey/" in capsys.readouterr().err


def test_a_zip_is_to_be_unpacked(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (torn / "photos" / "red" / "torn.png").unlink()
    words = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    assert run_app(root(), [*words, "--method", "initial-estimate"]) == 0
    (torn / "new.zip").write_bytes(b"PK")
    assert run_app(root(), ["add", str(torn / "m"), str(torn / "new.zip")]) == 2
    assert "new.zip is one file; unpack it, and give the folder" in capsys.readouterr().err


def test_a_class_of_one_picture_does_not_keep_others_from_being_held_out(torn: Path) -> None:
    """Else there is no calibration, no balance, and nothing to tell the unknown by, for its sake."""
    (torn / "photos" / "red" / "torn.png").unlink()
    paint(torn / "photos", ["yellow", "violet", "black"], 10)
    paint(torn / "photos", ["orange"], 1)
    words = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    assert run_app(root(), [*words, "--method", "initial-estimate"]) == 0
    model = load(torn / "m", trust=NAME)
    held_out = model.base.held_out
    assert held_out is not None
    counts = dict(zip(model.names, held_out.labels.bincount(minlength=7).tolist(), strict=True))
    assert counts == {
        n: 0 if n == "orange" else 2 if n in ("yellow", "violet", "black") else 1 for n in counts
    }
    assert "accuracy_base" in model.base.calibration.figures
