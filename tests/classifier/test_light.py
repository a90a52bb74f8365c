"""A model asked, looked at and shortened without torch: the same answers from its files alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_backbone import paint

from wdae.backbones.graphs import GRAPHS, SHIPPED, start
from wdae.backbones.preprocessing import Preprocessing
from wdae.classifier import Model, load, save
from wdae.classifier.embedded import embedded_model
from wdae.classifier.light.facts import remove_classes
from wdae.classifier.light.folder import HEAD, ModelFolder
from wdae.classifier.predictions import predictions
from wdae.classifier.store import changing, computed_answers
from wdae.classifier.summary import summary
from wdae.errors import ModelError, WdaeError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v1"
WITHOUT = """
import sys
slow = ["torch", "sklearn", "scipy", "pandas"]
slow += ["numpy", "PIL"] if sys.argv[1] in ("info", "remove") else []  # commands that compute nothing
for name in slow:
    sys.modules[name] = None
from wdae.cli.main import main
main(sys.argv[1:])
"""
QUESTIONS: list[dict[str, Any]] = [
    {},
    {"expect": 0.3},
    {"expect": 5e-324},  # the smallest number there is
    {"expect": 1 - 2**-53},
    {"only": "added"},
    {"only": "base"},
    {"only": ["robin", "lion"], "expect": 0.2},
]


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process where torch, and what is as slow, cannot be imported."""
    command = [sys.executable, "-c", WITHOUT, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint(tmp_path_factory.mktemp("pictures"), ["red", "green"], 5, side=120)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """The ready model with two classes added, and more examples of a base class."""
    model = embedded_model()
    assert model.backbone is not None
    rows = model.backbone.features(sorted(map(str, pictures.glob("*/*.png"))))
    model.add({"lion": rows[:3], "okapi": rows[3:5]})
    model.add({"robin": rows[5:7]}, update=True)
    folder = tmp_path_factory.mktemp("ready") / "model"
    save(model, folder)
    return folder


@pytest.fixture
def model(ready: Path, tmp_path: Path) -> Path:
    save(load(ready), tmp_path / "model")
    return tmp_path / "model"


def some_features(model: Model, n: int = 40) -> torch.Tensor:
    held_out = model.base.held_out
    rows = torch.randn(n, model.base.dim, generator=torch.Generator().manual_seed(1)).abs()
    examples = torch.stack([example.feature for example in model.examples])
    assert held_out is not None
    return torch.cat([rows, examples, examples + 0.3 * rows[: len(examples)]])


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
@pytest.mark.parametrize("false_alarms", [0.0, 0.05, 0.5])
def test_the_same_answers(ready: Path, question: dict[str, Any], false_alarms: float) -> None:
    model, folder = load(ready), ModelFolder.open(ready)
    assert folder.has_answers and folder.names == model.names and folder.added == model.added
    rows = some_features(model)
    wanted = predictions(model, rows, 4, false_alarms, **question)
    asked = dict(question)
    if "only" in asked:
        asked["only"] = folder.chosen(asked["only"])
    found = folder.answers().asked(**asked).predictions(rows.numpy(), 4, false_alarms)
    assert [one.unknown for one in found] == [one.unknown for one in wanted]
    if false_alarms and question.get("only") != "base":
        assert {one.unknown for one in found} == {True, False}
    for got, want in zip(found, wanted, strict=True):
        chances = dict(zip(want.classes, want.probabilities, strict=True))
        for name, chance in zip(got.classes, got.probabilities, strict=True):
            assert chances.get(name, chance) == pytest.approx(chance, abs=1e-4)


def test_commands_where_there_is_no_torch(model: Path, pictures: Path) -> None:
    told = without_torch("predict", model, pictures, "--json", "--top", "3", "--expect", "new=0.3")
    assert told.returncode == 0, told.stderr
    found = [json.loads(line) for line in told.stdout.splitlines()]
    opened = load(model)
    assert opened.backbone is not None
    files = [one["item"] for one in found]
    wanted = predictions(opened, opened.backbone.features(files), 3, expect=0.3)
    assert len(found) == 10
    for one, want in zip(found, wanted, strict=True):
        assert one["unknown"] == want.unknown
        got = [entry["probability"] for entry in one["predictions"]]
        assert one["predictions"][0]["class"] == want.classes[0]
        np.testing.assert_allclose(got, want.probabilities, atol=1e-4)
    told = without_torch("info", model, "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["added_classes"] == {"lion": 3, "okapi": 2}
    told = without_torch("remove", model, "okapi")
    assert told.returncode == 0 and "65 classes (1 added)" in told.stdout
    assert load(model).added == ("lion",)
    assert without_torch("remove", model, "robin").returncode == 2  # a base class


def test_a_state_that_was_there_is_known_again(model: Path, pictures: Path) -> None:
    folder = ModelFolder.open(model)
    remove_classes(model, ["okapi"])
    after = ModelFolder.open(model)
    assert not after.has_answers  # weights of the others may have changed with it
    answers = computed_answers(after)
    rows = some_features(load(model)).numpy()
    np.testing.assert_allclose(answers.scores(rows), load(model).scores(torch.from_numpy(rows)), atol=1e-4)
    assert ModelFolder.open(model).has_answers  # and is kept
    with changing(model) as changed:
        changed.undo()
    again = ModelFolder.open(model)
    assert again.has_answers and again._head_file == folder._head_file
    assert without_torch("predict", model, pictures / "red" / "0-0.png").returncode == 0


def test_who_may_only_read_computes_each_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_classes(model, ["okapi"])
    before = {file.name for file in model.iterdir()}

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("read-only")

    monkeypatch.setattr("wdae.classifier.store.alone", refuse)
    computed_answers(ModelFolder.open(model))
    assert {file.name for file in model.iterdir()} == before


def test_few_states_are_kept(model: Path) -> None:
    for i in range(12):
        with changing(model) as changed:
            changed.set_novel_share(0.1 + i / 100)
    kept = [name for name in ModelFolder.open(model).manifest.files if name.startswith(HEAD)]
    assert len(kept) == 8 == len(list(model.glob(f"{HEAD}*"))) and ModelFolder.open(model).has_answers


def test_an_altered_head_is_refused(model: Path) -> None:
    (head,) = model.glob(f"{HEAD}*")
    data = bytearray(head.read_bytes())
    data[-1] ^= 1
    head.write_bytes(data)
    with pytest.raises(WdaeError, match="checksum"):
        ModelFolder.open(model)


def test_what_is_asked_is_checked(ready: Path) -> None:
    folder = ModelFolder.open(ready)
    with pytest.raises(ModelError, match="did you mean 'lion'"):
        folder.chosen(["lions"])
    with pytest.raises(ModelError, match="works on"):
        folder.answers().scores(np.zeros((1, 3)))
    with pytest.raises(ModelError, match="NaN"):
        folder.answers().scores(np.full((1, folder.manifest.dim), np.nan))


@pytest.mark.parametrize("name", [*SHIPPED])
def test_graphs_are_those_of_the_networks(name: str) -> None:
    from wdae.backbones import build
    from wdae.backbones.as_onnx import weightless_graph

    torch.manual_seed(0)
    small: dict[str, Any] = {"widths": [8, 16, 16, 24]} if name in ("resnet10", "resnet12") else {}
    network = build(name, **small).eval()
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            for values in (part.running_mean, part.bias.detach()):
                assert values is not None
                values.normal_()
            assert part.running_var is not None
            part.running_var.uniform_(0.5, 2)
    written = weightless_graph(build(SHIPPED[name])).SerializeToString(deterministic=True)
    assert (GRAPHS / f"{SHIPPED[name]}.onnx").read_bytes() == written, "run scripts/make_graphs.py"
    rule = Preprocessing(image_size=64, value_range=255.0 if name == "conv4-64" else 1.0)
    weights = {key: value.numpy() for key, value in network.state_dict().items()}
    running = start(name, small, weights, rule)
    assert running is not None
    batch = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    with torch.no_grad():
        wanted = network(rule.prepare(torch.from_numpy(batch).permute(0, 3, 1, 2))).numpy()
    assert np.abs(running.features(batch) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot start"):
        start("conv4-64", {}, {"stages.0.0.weight": np.zeros((8, 3, 3, 3))}, Preprocessing(image_size=16))
    assert start("conv4-64", {"pool": "mean"}, {}, Preprocessing(image_size=16)) is None  # another graph
    assert start("timm:resnet18", {}, {}, Preprocessing(image_size=16)) is None


def test_models_of_the_first_version(tmp_path: Path) -> None:
    found = [file.parent for file in FIXTURES.rglob("model.json") if b'"wdae-model"' in file.read_bytes()]
    assert found
    for old in found:
        copy = Path(shutil.copytree(old, tmp_path / f"{len(list(tmp_path.iterdir()))}"))
        folder, model = ModelFolder.open(copy), load(copy)
        assert folder.names == model.names and summary(copy)["dim"] == model.base.dim
        assert folder.steps == (None if model.base.denoiser is None else model.base.denoiser.steps)
        answers = folder.answers() if folder.has_answers else computed_answers(folder)
        rows = torch.randn(5, model.base.dim, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(answers.scores(rows.numpy()), model.scores(rows), atol=1e-4)
        if model.added:
            assert remove_classes(copy, model.added[:1]).names == load(copy).names
