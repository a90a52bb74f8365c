"""Slips that people make, and what the commands say then."""

from __future__ import annotations

import ast
import csv
import io
import json
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import command_line
import numpy as np
import pytest
import torch
from tiny_backbone import paint

import wdae
from wdae.bank import FeatureBank
from wdae.classifier import BaseKnowledge, Model, learn, load, save
from wdae.classifier.explain import explain
from wdae.classifier.names import folded
from wdae.cli.main import main
from wdae.config import recipe_file
from wdae.config.keys import describe
from wdae.errors import ModelError, RecipeError
from wdae.parts import Part
from wdae.runs.progress import SECONDS
from wdae.stage2.config import MetaRecipe

BASE = ["red", "green", "blue", "yellow", "violet", "grey"]
BACKBONE = "tiny_backbone:factory"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("learned")
    paint(root / "base", BASE, 8)
    with pytest.raises(SystemExit):
        main(["learn", str(root / "base"), "-o", str(root / "model"), "--backbone", BACKBONE])
    return root / "model"


@pytest.fixture
def model(learned: Path, tmp_path: Path) -> Path:
    save(load(learned), tmp_path / "model")
    return tmp_path / "model"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = command_line.wdae(*words)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("name", ["unknown", "Unknown", " unknown "])
def test_no_class_is_called_unknown(
    model: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = paint(tmp_path, ["orange"], 2) / "orange"
    status, _, error = run(capsys, "add", model, "--class", name, new)
    assert status == 2 and "resembles no class" in error and "another name" in error
    with pytest.raises(ModelError, match="resembles no class"):
        load(model).add({name: torch.ones(1, 32)})


@pytest.mark.parametrize("name", ["added", "base"])
def test_no_class_is_called_as_all_of_them_are(
    model: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = paint(tmp_path, ["orange"], 2) / "orange"
    status, _, error = run(capsys, "add", model, "--class", name, new)
    assert status == 2 and f"--only {name}" in error and "another name" in error


def test_no_base_class_of_features_is_called_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = np.random.default_rng(0).normal(size=(30, 8)).astype("f4")
    labels = np.repeat(["a/b", "unknown", "dog"], 10)
    np.savez(tmp_path / "unk.npz", features=features, labels=labels)
    bank = ("bank", "import", tmp_path / "unk.npz", "--all-base", "-o", tmp_path / "bank")
    assert run(capsys, *bank)[0] == 0
    for source in ("unk.npz", "bank"):
        status, _, error = run(capsys, "learn", tmp_path / source, "-o", tmp_path / "x")
        assert status == 2 and "resembles no class" in error
    np.savez(tmp_path / "known.npz", features=features, labels=np.where(labels == "unknown", "cat", labels))
    words = ("learn", tmp_path / "known.npz", "-o", tmp_path / "x", "--method", "initial-estimate")
    assert run(capsys, *words)[0] == 0


def test_base_classes_that_a_denoiser_takes_are_those_of_the_documents() -> None:
    quick = {"denoiser.hidden": 8, "training.steps": 2, "evaluation.step_episodes": 10}
    found = {}
    for n in (11, 12):
        bank = wdae.synthetic_bank(n, 0, 2, 20, 16, seed=0, held_out_per_class=4)
        found[n] = learn(bank, recipe=quick).base.denoiser
    assert found[11] is None and found[12] is not None
    root = Path(__file__).parents[2]
    for page in ("README.md", "docs/guides/backbones.md", "docs/guides/five-photos.md"):
        text = (root / page).read_text(encoding="utf-8")
        assert "twelve" in text and "ten or more" not in text and "ten classes" not in text, page


def test_every_line_has_the_same_columns(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, odd = paint(tmp_path, ["red"], 3, seed=4), paint(tmp_path / "odd", ["black"], 3, seed=4)
    status, out, _ = run(capsys, "predict", model, known, odd, "--top", "2", "--false-alarms", "0.3")
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and {len(row) for row in rows} == {6}
    assert {row[1] for row in rows} == {"known", "unknown"}
    assert all(row[2] in BASE and row[4] in BASE and row[3].endswith("%") for row in rows)


def test_predictions_as_a_table_in_a_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = paint(tmp_path / "p", ["red", "blue"], 2, seed=4)
    out = tmp_path / "table.csv"
    status, said, _ = run(capsys, "predict", model, pictures, "--csv", "--top", "2", "-o", out)
    assert status == 0 and f"{out}: 4 lines" in said
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert list(rows[0]) == ["item", "unknown", "class", "probability", "class_2", "probability_2"]
    assert [row["class"] for row in rows] == ["blue", "blue", "red", "red"]
    assert all(0.5 < float(row["probability"]) <= 1 for row in rows)
    status, _, _ = run(capsys, "predict", model, pictures, "--json", "-o", tmp_path / "lines.json")
    assert status == 0
    assert [json.loads(line)["unknown"] for line in (tmp_path / "lines.json").read_text().splitlines()]


def test_output_has_one_form(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = paint(tmp_path, ["red"], 1)
    for command in ("predict", "evaluate"):
        status, out, error = run(capsys, command, model, pictures, "--csv", "--json")
        assert (status, out) == (2, "") and "--json or --csv" in error


def test_an_export_is_no_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(b"graph")
    status, _, error = run(capsys, "predict", tmp_path / "m.onnx", tmp_path)
    assert status == 2 and f"wdae learn --from {tmp_path / 'm.onnx'}" in error and "onnxruntime" in error


def test_a_folder_of_class_folders_is_not_one_class(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teach = paint(tmp_path / "teach", ["orange", "black"], 2)
    status, _, error = run(capsys, "add", model, teach, "--class", "rose")
    assert status == 2 and "black, orange" in error and "leave --class out" in error
    assert run(capsys, "add", model, teach / "orange", "--class", "rose")[0] == 0
    assert load(model).added == ("rose",)


def test_a_picture_in_two_classes_is_warned_of(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teach = paint(tmp_path / "teach", ["orange", "black"], 2)
    again = teach / "black" / "again.png"
    again.write_bytes((teach / "orange" / "0-0.png").read_bytes())
    status, _, error = run(capsys, "add", model, teach)
    assert status == 0 and error.count("is an example of") == 1
    assert "again.png is an example of 'black' and of 'orange'" in error and f"wdae undo {model}" in error
    lone = paint(tmp_path / "lone", ["grey"], 1) / "grey" / "0-0.png"
    assert "is an example of" not in run(capsys, "add", model, "--class", "steel", lone)[2]
    error = run(capsys, "add", model, "--class", "iron", lone)[2]
    assert "0-0.png is an example of 'iron' and of 'steel'" in error
    more = paint(tmp_path / "more", ["grey"], 1, seed=9) / "grey" / "0-0.png"
    assert "is an example of" not in run(capsys, "add", model, "--class", "iron", more, "--update")[2]


def test_counts_and_costs_of_a_change(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teach = paint(tmp_path / "teach", ["orange", "black"], 1)
    out = run(capsys, "add", model, teach)[1]
    assert "orange: 1 example added, 1 in all\n" in out
    out = run(capsys, "merge", model, "black", "--into", "orange")[1]
    assert "orange: 2 examples given\n" in out and "\nbase classes: " in out
    more = paint(tmp_path / "more", ["red"], 2, seed=5) / "red"
    out = run(capsys, "add", model, "--class", "red", more, "--update")[1]
    assert "red: 2 examples added, 2 in all, beside those it was learned from\n" in out
    out = run(capsys, "merge", model, "orange", "--into", "red")[1]
    assert "red: 4 examples given, beside those it was learned from\n" in out


def test_a_class_gets_another_name(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teach = paint(tmp_path / "teach", ["orange", "black"], 2)
    assert run(capsys, "add", model, teach)[0] == 0
    before = load(model)
    status, out, _ = run(capsys, "rename", model, "black", "Black")
    assert status == 0 and "black is Black now" in out and "8 classes (2 added)" in out
    after = load(model)
    assert after.added == ("orange", "Black") and after.state["Black"] == before.state["black"]
    assert "renamed 'black' to 'Black'" in run(capsys, "info", model)[1]
    out = run(capsys, "predict", model, teach / "black", "--only", "added")[1]
    assert out.count("Black") == 2
    assert run(capsys, "undo", model)[0] == 0
    assert load(model).state == before.state and torch.equal(load(model).head.matrix, before.head.matrix)
    for old, new, said in (
        ("red", "scarlet", "'red' is a base class"),
        ("blacks", "ink", "did you mean 'black'?"),
        ("black", "orange", "'orange' exists already"),
        ("black", "Unknown", "resembles no class"),
    ):
        status, _, error = run(capsys, "rename", model, old, new)
        assert status == 2 and said in error
    assert len(load(model).history.changes) == 2


def test_one_of_a_thing_is_said_as_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = paint(tmp_path / "new", ["orange"], 1) / "orange" / "0-0.png"
    assert run(capsys, "add", model, "--class", "orange", new)[0] == 0
    assert "added class, 1 example given" in run(capsys, "explain", model, "orange")[1]
    out = run(capsys, "predict", model, new, "-o", tmp_path / "out.txt")[1]
    assert "out.txt: 1 line\n" in out
    np.savez(tmp_path / "one.npz", features=np.ones((8, 4), "f4"), labels=["a"] * 8)
    status, _, error = run(capsys, "bank", "import", tmp_path / "one.npz", "-o", tmp_path / "bank")
    assert status == 2 and "1 class is too few" in error
    words = ("learn", tmp_path / "one.npz", "-o", tmp_path / "one")
    assert run(capsys, *words)[0] == 0
    assert "none: 1 base class with 2 images or more" in run(capsys, "info", tmp_path / "one")[1]


def test_advice_names_options_that_the_command_has(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loose = paint(tmp_path, ["red"], 2) / "red"
    for source in (loose, *list(loose.iterdir())[:1]):
        _, _, error = run(capsys, "add", model, source)
        assert "--class NAME" in error
        status, _, error = run(capsys, "evaluate", model, source)
        assert status == 2 and "folder" in error and "--class" not in error


def test_the_same_picture_counts_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teach = paint(tmp_path / "teach", ["orange"], 2)
    first, second = sorted((teach / "orange").glob("*.png"))
    copy = tmp_path / "copy.png"
    copy.write_bytes(first.read_bytes())
    status, out, _ = run(capsys, "add", model, "--class", "orange", first, copy, second, first)
    assert status == 0 and "2 examples added (2 were there already, or given twice), 2 in all" in out
    once = load(model).head.matrix
    status, out, _ = run(capsys, "add", model, teach, "--update")
    assert status == 0 and "0 examples added (2 were there already" in out
    assert load(model).shots("orange") == 2 and len(load(model).history.changes) == 1
    assert torch.equal(load(model).head.matrix, once)


def test_repeats_are_told_from_neighbours(base: BaseKnowledge, newcomers: dict[str, torch.Tensor]) -> None:
    rows = newcomers["new 0"][:4]
    near = rows + 1e-3 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    model = Model(base)
    model.add({"a": torch.cat([rows, 7.0 * rows.flip(0), near, rows + 1e-7])})
    assert model.shots("a") == 8
    model.add({"a": torch.cat([near, -rows])}, update=True)
    assert model.shots("a") == 12
    kept = torch.stack([example.feature for example in model.examples_of("a")[:4]])
    torch.testing.assert_close(kept, rows / rows.norm(dim=1)[:, None])


def test_names_that_people_take_for_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [sorted((paint(tmp_path / f"{i}", ["orange"], 2, seed=i) / "orange").glob("*")) for i in range(4)]
    assert run(capsys, "add", model, "--class", "frying pan", *files[0])[0] == 0
    status, _, error = run(capsys, "add", model, "--class", " frying pan ", *files[1])
    assert status == 2 and "'frying pan' exists already" in error
    status, _, error = run(capsys, "add", model, "--class", "Frying_Pan", *files[1])
    assert status == 0 and "'Frying_Pan' is a class beside 'frying pan'" in error
    assert "wdae merge" in error and "--into 'frying pan'" in error
    assert run(capsys, "add", model, "--class", "other", *files[2])[2].count("beside") == 0
    status, out, _ = run(capsys, "merge", model, "Frying_Pan", "--into", "frying pan")
    assert status == 0 and "frying pan: 4 examples" in out
    assert load(model).added == ("frying pan", "other") and load(model).shots("frying pan") == 4
    assert run(capsys, "undo", model)[0] == 0
    assert load(model).shots("frying pan") == 2 and load(model).shots("Frying_Pan") == 2
    for words in (
        ("frying pan", "--into", "frying pan"),
        ("red", "--into", "frying pan"),
        ("no", "--into", "red"),
    ):
        assert run(capsys, "merge", model, *words)[0] == 2
    assert folded(unicodedata.normalize("NFD", "Äpfel")) == folded("äpfel") == folded("ÄPFEL")


def test_merging_is_giving_all_examples_to_one(
    base: BaseKnowledge, newcomers: dict[str, torch.Tensor]
) -> None:
    rows = newcomers["new 0"]
    apart, together = Model(base), Model(base)
    apart.add({"a": rows[:2], "b": rows[2:5]})
    apart.merge(["b"], "a")
    together.add({"a": rows[:5]})
    assert torch.equal(apart.head.matrix, together.head.matrix) and apart.names == together.names
    apart.add({"c": rows[3:6]})
    apart.merge(["c"], "a")  # two of its three are there already
    assert apart.shots("a") == 6


def test_base_classes_that_look_alike_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paint(tmp_path / "base", BASE, 4)
    (tmp_path / "base" / "red").rename(tmp_path / "base" / "Blue")
    words = ("learn", tmp_path / "base", "-o", tmp_path / "m", "--backbone", BACKBONE)
    status, _, error = run(capsys, *words)
    assert status == 0 and "'Blue'" in error and "'blue'" in error


def test_info_names_the_classes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "info", model)
    assert "base classes: " + ", ".join(sorted(BASE)) in out
    assert "0.0 MB" not in out


def test_undone_is_redone(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = paint(tmp_path, ["orange", "black"], 2)
    for colour in ("orange", "black"):
        assert run(capsys, "add", model, "--class", colour, new / colour)[0] == 0
    for _ in range(2):
        assert run(capsys, "undo", model)[0] == 0
    assert run(capsys, "redo", model)[0] == 0
    assert load(model).added == ("orange",)
    assert run(capsys, "redo", model)[0] == 0
    assert load(model).added == ("orange", "black")
    status, _, error = run(capsys, "redo", model)
    assert status == 2 and "nothing to redo" in error


def test_things_show_themselves_in_a_line(model: Path) -> None:
    opened = load(model)
    assert (
        repr(opened)
        == "Model(6 base classes, 0 added, pictures by 'tiny_backbone:factory', features of size 32)"
    )
    assert len(repr(opened.backbone)) < 100


def test_removing_from_a_model_to_which_nothing_was_added(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, error = run(capsys, "remove", model, "okapi")
    assert error.strip() == "error: no added class is called 'okapi'; none was added yet"


def test_errors_of_the_library_advise_no_flags(
    base: BaseKnowledge, newcomers: dict[str, torch.Tensor]
) -> None:
    model = Model(base)
    model.add({"a": newcomers["new 0"][:1]})
    with pytest.raises(ModelError, match="exists already") as refused:
        model.add({"a": newcomers["new 0"][:1]})
    assert "--" not in str(refused.value) and "update=True" in str(refused.value)


def test_patterns_work_where_no_shell_reads_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = paint(tmp_path / "new", ["orange"], 3)
    assert run(capsys, "add", model, "--class", "orange", new / "orange" / "*.png")[0] == 0
    assert load(model).shots("orange") == 3
    status, out, _ = run(capsys, "predict", model, tmp_path / "**" / "*-1.png")
    assert status == 0 and len(out.splitlines()) == 1
    status, _, error = run(capsys, "predict", model, tmp_path / "*.gif")
    assert status == 2 and "no file or folder matches" in error


def test_one_broken_picture_does_not_silence_the_others(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = paint(tmp_path / "p", ["red"], 3, seed=5) / "red"
    (pictures / "note.txt").write_text("hello")
    (pictures / "torn.png").write_bytes(b"hello")
    status, out, error = run(capsys, "predict", model, pictures / "*")
    assert status == 0 and len(out.splitlines()) == 3 and error.count("left out, cannot be read") == 2
    assert "torn.png" in error and "note.txt" in error and "--strict" in error and "b'" not in error
    status, out, error = run(capsys, "predict", model, pictures / "*", "--strict")
    assert status == 2 and len(out.splitlines()) == 3 and error.count("left out, cannot be read") == 2
    assert run(capsys, "predict", model, pictures / "*", "--skip-broken")[0] == 0  # as it was said before


def test_slips_are_told_before_torch_is_loaded(model: Path, tmp_path: Path) -> None:
    """A second or four less to wait for; torch is not there at all in these processes."""
    code = "import sys\nsys.modules['torch'] = None\nfrom wdae.cli.main import main\nmain(sys.argv[1:])"
    there = str(model / "model.json")  # a file that is there
    for words, said in (
        (["predict", "nowhere", there], "does not exist"),
        (["predict", str(model), "nowhere.jpg"], "nowhere.jpg does not exist"),
        (["predict", str(model), there, "--top", "0"], "at least 1"),
        (["predict", str(model), there, "--expect", "new=2"], "between 0 and 1"),
        (["predict", str(model), there, "--false-alarms", "2"], "between 0 and 1"),
        (["add", str(model), "nowhere"], "nowhere does not exist"),
        (["add", str(tmp_path), there], "not a model"),
        (["undo", "nowhere"], "does not exist"),
        (["redo", "nowhere"], "does not exist"),
        (["remove", "nowhere", "x"], "does not exist"),
        (["merge", "nowhere", "x", "--into", "y"], "does not exist"),
        (["set", str(model), "novel-share", "2"], "between 0 and 1"),
        (["info", "nowhere"], "does not exist"),
        (["explain", "nowhere", "x"], "does not exist"),
        (["export", "nowhere", "--to", "linear"], "does not exist"),
        (["evaluate", str(model)], "one folder or file of features, got 0: wdae evaluate MODEL DIR"),
        (["learn", "nowhere", "-o", str(tmp_path / "m")], "nowhere does not exist"),
        (["learn", "-o", str(tmp_path)], "exists already"),
        (["train", "--bank", "nowhere", "-o", "m"], "nowhere does not exist; make one"),
        (["compare", "--bank", "nowhere", "-o", "m"], "nowhere does not exist; make one"),
        (["evaluate", "a", "--bank", "nowhere"], "nowhere does not exist; make one"),
        (["bank", "show", str(tmp_path)], "not a feature bank"),
        (["extract", "--data", "nowhere", "--backbone", "x", "-o", "m"], "nowhere does not exist"),
        (["pretrain", "--data.path", "nowhere", "-o", "m"], "nowhere does not exist"),
        (["data", "check", "nowhere"], "nowhere does not exist"),
        (["evaluate", "nowhere", there], "wdae evaluate MODEL DIR"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and said in done.stderr, (words, done.stderr)


def test_help_of_learn_shows_the_recipe_that_it_uses(capsys: pytest.CaptureFixture[str]) -> None:
    """wDAE-GNN+ keeps base weights as they are and trains 300 steps; neither is MetaRecipe's default."""
    default = {key.name: key.default_text for key in describe(MetaRecipe)}
    assert default["evaluation.refine_base"] == "true" and default["name"] != "wdae-gnn+"
    _, out, _ = run(capsys, "learn", "--help")
    plain = " ".join(out.replace("│", " ").split())
    for option, value in (("--name", "wdae-gnn+-any-shots"), ("--evaluation.refine-base", "false")):
        assert plain.split(f" {option} ", 1)[1].split("[default: ", 1)[1].startswith(value)


def test_a_recipe_that_is_misspelt(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe_file("mini-imagenet/wdae-gn")
    assert "did you mean 'mini-imagenet/wdae-gnn'?" in str(refused.value) and "?;" not in str(refused.value)


def test_progress_of_long_predictions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDAE_PROGRESS", "plain")
    monkeypatch.setitem(SECONDS, "plain", 0.0)
    pictures = paint(tmp_path / "p", ["red"], 3)
    status, out, error = run(capsys, "predict", model, pictures)
    assert status == 0 and len(out.splitlines()) == 3
    assert "classifying 3/3" in error


def test_no_two_classes_have_one_name() -> None:
    seen: dict[str, str] = {}
    package = Path(wdae.__file__).parent
    wire = package / "serve" / "schemas.py"  # what goes over the wire has the names of the API
    for file in sorted(file for file in package.rglob("*.py") if file != wire):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert seen.setdefault(node.name, file.name) == file.name, node.name


def test_classes_that_get_nothing_are_not_listed(
    base: BaseKnowledge, newcomers: dict[str, torch.Tensor]
) -> None:
    model = Model(base)
    model.add({"a": newcomers["new 0"][:3]})
    found = explain(model, "a")
    assert len(found.confusable) == 5
    nothing = replace(found, confusable=tuple(replace(c, probability=1e-5) for c in found.confusable))
    assert "no other class gets 0.1%" in nothing.as_text() and "  0.0%  " not in nothing.as_text()
    some = replace(nothing, confusable=(replace(found.confusable[0], probability=0.2), *nothing.confusable))
    assert "  20.0%  " in some.as_text() and "  0.0%  " not in some.as_text()


def test_one_class_is_too_few_to_tell_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paint(tmp_path / "base", ["red"], 1)
    status, _, error = run(capsys, "learn", tmp_path / "base", "-o", tmp_path / "m", "--backbone", BACKBONE)
    assert status == 0 and "1 class" in error


def test_a_labelled_bank_of_features_is_named_by_its_classes(small_bank: FeatureBank) -> None:
    model = learn(small_bank, method="initial-estimate")
    assert model.base.names == small_bank.select(Part.BASE_TRAIN).names


def test_figures_of_few_pictures_are_called_rough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A share of 32 pictures reads as if it were one of 2,000."""
    for each, rough in ((4, True), (60, False)):
        bank = wdae.synthetic_bank(8, 0, 0, 2 * each, 8, seed=0, held_out_per_class=each)
        save(learn(bank, method="initial-estimate"), tmp_path / str(each))
        status, out, _ = run(capsys, "info", tmp_path / str(each))
        assert status == 0 and (f"found on {8 * each} held-out pictures of base classes" in out) == rough
        assert (f"unknown: very roughly (it was found on {8 * each} held-out pictures) " in out) == rough


def test_a_wrong_recipe_is_refused_where_too_few_classes_need_none() -> None:
    bank = wdae.synthetic_bank(4, 0, 0, 12, 8, seed=0, held_out_per_class=4)
    with pytest.raises(RecipeError, match="stepz"):
        learn(bank, recipe={"training.stepz": 2})


def test_one_path_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(wdae.errors.DataError, match=r"a list, got one path; give \['okapi.jpg'\]"):
        wdae.embedded_backbone().features("okapi.jpg")
