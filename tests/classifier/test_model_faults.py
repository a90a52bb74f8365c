"""Bad input to models: a clear message, status 2, and the model as it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import wdae
from tiny_backbone import paint

from wdae.bank import FeatureBank
from wdae.classifier import LearnConfig, Model, learn, load, save
from wdae.classifier.store import ModelManifest
from wdae.cli.main import main
from wdae.errors import ModelError, StorageError
from wdae.parts import Part
from wdae.synthetic import synthetic_bank

BASE = ["red", "green", "blue", "yellow", "violet", "grey"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    return wdae(*words), capsys.readouterr().err


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("learned")
    paint(root / "base", BASE, 8)
    with pytest.raises(SystemExit):
        main(
            [
                "learn",
                str(root / "base"),
                "-o",
                str(root / "model"),
                "--backbone",
                "tiny_backbone:factory",
            ]
        )
    return root / "model"


@pytest.fixture
def model(learned: Path, tmp_path: Path) -> Path:
    copy = load(learned)
    save(copy, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def unchanged(model: Path):  # type: ignore[no-untyped-def]
    """Whatever a test does to the model, it is not changed by it."""
    before = (model / "model.json").read_bytes()
    yield model
    assert (model / "model.json").read_bytes() == before


def test_a_name_that_exists(unchanged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = paint(tmp_path / "new", ["red"], 2)
    status, output = run(capsys, "add", unchanged, new)
    assert (
        status == 2 and "'red' exists already" in output and "--update" in output and "another name" in output
    )
    status, output = run(capsys, "add", unchanged, "--class", "red", new / "red")
    assert status == 2 and "exists already" in output
    status, output = run(capsys, "add", unchanged, paint(tmp_path / "two", ["red", "green"], 2))
    assert status == 2 and "classes 'green', 'red' exist already; to give them more examples" in output


def test_an_empty_folder(unchanged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new" / "okapi").mkdir(parents=True)
    status, output = run(capsys, "add", unchanged, tmp_path / "new")
    assert status == 2 and "class 'okapi' has 0 pictures" in output and "at least 1" in output
    status, output = run(capsys, "add", unchanged, tmp_path / "new" / "okapi")
    assert status == 2 and "is empty" in output
    status, output = run(capsys, "add", unchanged, "--class", "okapi", tmp_path / "new" / "okapi")
    assert status == 2 and "has no pictures" in output
    status, output = run(capsys, "add", unchanged)
    assert status == 2 and "nothing to learn from" in output
    status, output = run(capsys, "add", unchanged, tmp_path / "nowhere")
    assert status == 2 and "does not exist" in output


def test_one_unreadable_picture_among_five(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = paint(tmp_path / "new", ["orange"], 5)
    broken = new / "orange" / "0-2.png"
    broken.write_bytes(broken.read_bytes()[:60])
    before = (model / "model.json").read_bytes()
    status, output = run(capsys, "add", model, new, "--strict")
    assert status == 2 and "0-2.png" in output and "--strict" in output
    assert (model / "model.json").read_bytes() == before
    status, output = run(capsys, "add", model, new)
    assert status == 0 and "0-2.png" in output and "1 picture was left out; with --strict" in output
    assert load(model).shots("orange") == 4
    for command in (("predict", model, new), ("evaluate", model, new)):
        status, output = run(capsys, *command, "--strict")
        assert status == 2 and "0-2.png" in output
        status, output = run(capsys, *command)
        assert status == 0 and output.count("0-2.png") == 1
    status, output = run(capsys, "predict", model, broken)
    assert status == 2 and "0-2.png" in output and "0 others" in output


def test_zero_shots_other_sizes_and_values_that_are_not_numbers(learned: Path) -> None:
    model = load(learned)
    for features, output in (
        (torch.zeros(0, 32), "has 0 examples; give at least 1"),
        (torch.ones(2, 31), r"shape \[2, 31\], the model works on \[k, 32\]; use the backbone"),
        (torch.ones(32), r"shape \[32\], the model works on \[k, 32\]; give a row for each example"),
        (torch.full((2, 32), float("nan")), "NaN, infinite or all zeros, the first is number 0"),
        (torch.full((2, 32), float("inf")), "NaN, infinite or all zeros"),
        (torch.zeros(2, 32), "all zeros"),
    ):
        with pytest.raises(ModelError, match=output):
            model.add({"okapi": features})
    with pytest.raises(ModelError, match=r"examples are features, .*; of pictures, model.backbone.features"):
        model.add({"okapi": ["a.jpg"]})
    with pytest.raises(ModelError, match="no classes to add"):
        model.add({})
    with pytest.raises(ModelError, match=r"shape \[3, 5\]"):
        model.scores(torch.ones(3, 5))
    with pytest.raises(ModelError, match="first in row 1"):
        model.scores(torch.tensor([[1.0] * 32, [float("nan")] * 32]))
    assert model.history.changes == ()


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("a/b", "contains '/'"),
        ("..\\b", "separates folders"),
        ("..", "means a folder"),
        ("tab\there", "control character"),
        ("line\nbreak", "control character"),
        ("\x1b[31mred", "control character"),
        ("x" * 10_000, "has 10000 letters; at most 200"),
        ("", "is empty"),
        ("   ", "is empty"),
    ],
)
def test_names_that_cannot_be(learned: Path, name: str, output: str) -> None:
    model = load(learned)
    with pytest.raises(ModelError) as refused:
        model.add({name: torch.ones(1, 32)})
    assert output in str(refused.value)
    assert len(str(refused.value)) < 300  # ten thousand letters are not output back


def test_removing_what_cannot_be_removed(unchanged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output = run(capsys, "remove", unchanged, "red")
    assert status == 2 and "'red' is a base class" in output
    status, output = run(capsys, "remove", unchanged, "okapi")
    assert status == 2 and "no added class is called 'okapi'" in output
    status, output = run(capsys, "remove", unchanged)
    assert status == 2 and "name at least one" in output


def test_undo_on_nothing(unchanged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output = run(capsys, "undo", unchanged)
    assert status == 2 and "nothing to undo" in output
    status, output = run(capsys, "undo", unchanged, "--to", "3")
    assert status == 2 and "there is no change 3" in output


FILES = ["model.json", "base.safetensors", "method.safetensors", "backbone.safetensors"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", ["cut short", "altered", "missing"])
def test_a_damaged_model_is_refused(
    model: Path, file: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model / file
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "cut short":
        path.write_bytes(data[: len(data) // 2])
    else:
        at = data.index(b"red") if file == "model.json" else len(data) - 5
        path.write_bytes(data[:at] + b"RED" + data[at + 3 :])
    for command in (("info", model), ("predict", model, __file__), ("undo", model)):
        status, output = run(capsys, *command)
        assert status == 2
        assert any(word in output for word in ("truncated", "altered", "missing", "not a model")), output


def test_a_model_of_a_newer_version(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(value | {"version": 99}))
    status, output = run(capsys, "info", model)
    assert status == 2 and "model format 99, newer than 3" in output and "upgrade wdae" in output


def test_history_that_speaks_of_examples_that_are_not_there(model: Path) -> None:
    from wdae.storage.manifest import read, write

    value = read(ModelManifest, model).model_dump(mode="json", exclude={"version_1", "sha256"})
    value["history"] = {
        "head": 1,
        "changes": [
            {"number": 1, "parent": 0, "kind": "add", "time": "", "added": {"x": [7]}, "removed": []}
        ],
    }
    write(ModelManifest, model, value)
    with pytest.raises(StorageError, match="history is altered"):
        load(model)


def test_things_that_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("info", tmp_path), ("add", tmp_path, tmp_path), ("undo", tmp_path / "nowhere")):
        status, output = run(capsys, *command)
        assert status == 2 and "wdae learn" in output
    status, output = run(capsys, "evaluate", tmp_path, tmp_path)
    assert status == 2 and "--bank" in output


def test_learning_from_nothing_useful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    status, _ = run(capsys, "learn", tmp_path / "empty", "-o", tmp_path / "m")
    assert status == 2
    paint(tmp_path / "base", BASE, 4)
    status, output = run(capsys, "learn", tmp_path / "base", "-o", tmp_path / "m", "--backbone", "conv4-64")
    assert status == 2 and "no trained weights" in output and "--train conv4-64" in output
    status, output = run(capsys, "learn", tmp_path / "base", "-o", tmp_path / "base")
    assert status == 2 and "exists already" in output
    assert not (tmp_path / "m").exists()


def test_classes_that_a_model_does_not_have_cannot_be_evaluated(
    unchanged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = run(capsys, "evaluate", unchanged, paint(tmp_path / "t", ["orange"], 2))
    assert status == 2 and "no class of the model is called 'orange'; add it to the model, or leave" in output


def test_features_that_are_no_base_for_a_model(small_bank: FeatureBank) -> None:
    rows = (small_bank.parts == Part.NOVEL.code).nonzero()[:, 0]
    novel = FeatureBank.build(
        small_bank.features[rows], np.zeros(len(rows), dtype=np.int64), ["a"], Part.NOVEL
    )
    with pytest.raises(Exception, match="no base-train images"):
        learn(novel, LearnConfig())


def test_a_single_class_can_be_learned_and_added_to() -> None:
    bank = FeatureBank.build(torch.eye(4), [0, 0, 0, 0], ["a"], Part.BASE_TRAIN)
    model = Model(learn(bank, LearnConfig()).base)
    model.add({"b": -torch.ones(1, 4)})
    assert model.names[int(model.scores(-torch.ones(1, 4)).argmax())] == "b"


def test_what_is_no_method_is_refused_before_any_work(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paint(tmp_path / "base", BASE, 4)
    for method in ("lwof-attention", str(learned)):
        status, output = run(
            capsys,
            "learn",
            tmp_path / "base",
            "-o",
            tmp_path / "m",
            "--backbone",
            "embedded",
            "--method",
            method,
        )
        assert status == 2 and "holds no trained method" in output and "initial-estimate" in output
        assert not list(tmp_path.glob(".m*"))


def test_a_misspelt_backbone_and_a_bank_to_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paint(tmp_path / "base", BASE, 4)
    status, output = run(capsys, "learn", tmp_path / "base", "-o", tmp_path / "m", "--backbone", "embeded")
    assert status == 2 and "did you mean 'embedded'" in output
    with pytest.raises(ModelError, match=r"bank\.save"):
        save(synthetic_bank(4, 0, 2, 6, 4, held_out_per_class=2), tmp_path / "bank")  # type: ignore[arg-type]
