import json
from pathlib import Path

import numpy as np
import pytest

from wdae.bank import FeatureBank
from wdae.cli.app import run_app
from wdae.cli.bank import app
from wdae.parts import Part


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    features = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=features, labels=np.repeat(np.arange(10), 6))
    return tmp_path / "f.npz"


def test_one_command_makes_a_usable_bank(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(app, ["import", str(npz), "-o", str(tmp_path / "bank"), "--note", "backbone=conv4"]) == 0
    out = capsys.readouterr().out
    assert "base-held-out" in out
    assert "at random, seed 0" in out
    assert "backbone: conv4" in out
    bank = FeatureBank.open(tmp_path / "bank")
    assert [len(bank.classes_of(part)) for part in Part] == [6, 6, 2, 2]


def test_options_reach_the_import(npz: Path, tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("8\n9\n")
    words = ["import", str(npz), "-o", str(tmp_path / "bank"), "--dtype", "int8", "--held-out", "2"]
    words += ["--novel", str(tmp_path / "novel.txt"), "--validation", "0, 1", "--cosine-scale", "7"]
    assert run_app(app, words) == 0
    bank = FeatureBank.open(tmp_path / "bank")
    assert bank.classes_of(Part.NOVEL) == [8, 9]
    assert bank.classes_of(Part.VALIDATION) == [0, 1]
    assert bank.counts(Part.BASE_TRAIN) == [4] * 6
    assert bank.features.dtype.itemsize == 1
    assert bank.cosine_scale == 7


def test_a_file_for_each_part(tmp_path: Path, npz: Path) -> None:
    np.savez(tmp_path / "new.npz", features=np.ones((3, 4)), labels=["x", "y", "y"])
    parts = ["--part", f"base-train={npz}", "--part", f"novel={tmp_path / 'new.npz'}"]
    assert run_app(app, ["import", *parts, "-o", str(tmp_path / "bank")]) == 0
    bank = FeatureBank.open(tmp_path / "bank")
    assert (bank.n_base, bank.counts(Part.NOVEL)) == (10, [1, 2])


def test_show_speaks_to_people_and_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "bank")
    assert run_app(app, ["synthesize", "-o", folder, "--base", "8", "--dim", "12", "--images", "30"]) == 0
    assert run_app(app, ["show", folder]) == 0
    assert "base weights: 8 × 12, cosine scale 20" in capsys.readouterr().out
    assert run_app(app, ["show", folder, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["dim"], facts["dtype"], facts["base_weights"]) == (12, "float32", [8, 12])
    assert facts["parts"]["base-train"]["images_per_class"] == {"min": 5, "median": 5, "max": 5}
    assert facts["bytes_on_disk"] == sum(f.stat().st_size for f in Path(folder).iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "-o", "OUT"], "give one FILE of features"),
        (["import", "none.npz", "-o", "OUT"], "none.npz does not exist"),
        (["import", "f.npz", "-o", "HERE"], "exists already"),
        (["import", "--part", "novel", "-o", "OUT"], "--part takes NAME=VALUE; got 'novel'"),
        (["import", "--part", "novle=x.npz", "-o", "OUT"], "unknown part 'novle'; did you mean 'novel'"),
        (
            ["import", "--part", "novel=x.npz", "--held-out", "2", "-o", "OUT"],
            "--held-out goes with one FILE",
        ),
        (["import", "--part", "novel=x", "--part", "novel=y", "-o", "OUT"], "one is given twice"),
        (["synthesize", "-o", "OUT", "--images", "3"], "leave no base-train"),
        (["show", "OUT"], "does not exist"),
        (["show", "HERE"], "not a feature bank"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"OUT": str(tmp_path / "out"), "HERE": str(tmp_path)}
    assert run_app(app, [places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
