"""Forged artefacts through the commands that take them: no code, nothing outside, one clear line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forged import CANARY, RECIPES, bank, feature_files, model, names_code, pickled, pictures, stage1_model
from fuzz_artefacts import FIXTURES
from PIL import Image

from wdae.cli.app import run_app
from wdae.cli.main import root

HOSTILE = "=x\x1b[31m\u202e[bold]<b>|a"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "evil_mod.py").write_text(f"import pathlib\npathlib.Path({CANARY!r}).touch()\nmake = dict\n")
    monkeypatch.chdir(work)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], place: Path, *words: str) -> str:
    assert run_app(root(), words) == 2, words
    said = capsys.readouterr().err
    assert said.startswith("error:") or "\nerror:" in said
    assert "Traceback" not in said
    assert not list(place.rglob(CANARY))
    return said


def copied(place: Path, name: str) -> str:
    """One of the fixtures, which no command gets itself."""
    return str(shutil.copytree(FIXTURES / name, place / "copied" / name))


def commands_on(folder: Path, place: Path) -> list[list[str]]:
    Image.new("RGB", (16, 16), "red").save(place / "a.png")
    (place / "labelled" / "new").mkdir(parents=True)
    Image.new("RGB", (16, 16), "red").save(place / "labelled" / "new" / "a.png")
    name, picture = str(folder), str(place / "a.png")
    return [
        ["predict", name, picture],
        ["add", name, "--class", "new", picture],
        ["evaluate", name, str(place / "labelled")],
    ]


@pytest.mark.parametrize("factory", ["os:system", "evil_mod:make", "builtins:exec"])
def test_a_model_names_no_code(place: Path, capsys: pytest.CaptureFixture[str], factory: str) -> None:
    folder = model(place, names_code(factory))
    for words in commands_on(folder, place):
        refused(capsys, place, *words)


@pytest.mark.parametrize("factory", ["os:system", "evil_mod:make"])
def test_a_stage_1_model_names_no_code(place: Path, capsys: pytest.CaptureFixture[str], factory: str) -> None:
    folder = stage1_model(place, names_code(factory))
    data = copied(place, "pictures")
    refused(
        capsys, place, "extract", "--backbone", str(folder), "--data", data, "-o", "bank", "--device", "cpu"
    )


def _elsewhere(value: dict[str, Any], folder: Path) -> None:
    value["examples"] = [{"file": "../outside/secret.safetensors", "rows": 2, "sources": ["a", "b"]}]


def _unlisted(value: dict[str, Any], folder: Path) -> None:
    value["files"] = {}


def _long(value: dict[str, Any], folder: Path) -> None:
    value["files"]["x" * 5000] = next(iter(value["files"].values()))


def _no_list(value: dict[str, Any], folder: Path) -> None:
    value["files"] = True


@pytest.mark.parametrize("change", [_elsewhere, _unlisted, _long, _no_list])
def test_a_manifest_that_lies(
    place: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any], Path], None]
) -> None:
    refused(capsys, place, "info", str(model(place, change, "none")))
    if change is not _elsewhere:
        refused(capsys, place, "bank", "show", str(bank(place, change)))


def test_nothing_is_written_through_a_link(place: Path) -> None:
    folder = model(place, lambda value, folder: None, "none")
    victim = place / "victim.txt"
    victim.write_text("mine")
    for number in range(1, 9):
        link = folder / f"examples-{number:06}.safetensors"
        if not link.exists():
            link.symlink_to(victim)
    np.save(place / "a.npy", np.ones((2, 16), np.float32))
    run_app(root(), ["add", str(folder), "--class", "new", str(place / "a.npy")])
    assert victim.read_text() == "mine"


def test_features_that_ask_for_too_much(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copied(place, "models/none")
    for file in feature_files(place / "features"):
        for words in (
            ["bank", "import", str(file), "-o", "bank"],
            ["predict", model, str(file)],
        ):
            if file.suffix != ".json" or words[0] == "bank":
                refused(capsys, place, *words)


def test_pictures_that_are_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copied(place, "models/pictures")
    for file in pictures(place / "pictures"):
        refused(capsys, place, "predict", model, str(file), "--trust", "v1_eye:factory")
    (place / "set").mkdir()
    (place / "pictures").rename(place / "set" / "cat")
    refused(capsys, place, "data", "check", str(place / "set"))


@pytest.mark.parametrize("data", [None, b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s."])
def test_pickles(place: Path, capsys: pytest.CaptureFixture[str], data: bytes | None) -> None:
    refused(capsys, place, "data", "check", str(pickled(place / "pickles", data)))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (place / "recipes").mkdir()
    recipe = place / "recipes" / f"{name}.yaml"
    recipe.write_text(RECIPES[name])
    (place.parent / "outside.yaml").write_text("seed: 1\n")
    refused(capsys, place, "train", "--recipe", str(recipe), "--bank", "none", "-o", "out")


def test_hostile_names_are_shown_escaped(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(
        place / "a.npz",
        features=np.eye(6, 16, dtype=np.float32) + 1,
        labels=np.array([HOSTILE] * 3 + ["b"] * 3),
    )

    def change(value: dict[str, Any], folder: Path) -> None:
        value["info"] = {**value.get("info", {}), "source": HOSTILE}
        if "class_names" in value:
            value["class_names"][0] = HOSTILE
        else:
            key = "base_classes" if "base_classes" in value else "classes" if "classes" in value else "names"
            value[key] = [HOSTILE, *value[key][1:]]

    folder, made = model(place, change, "none"), bank(place, change)
    for words in (
        ["info", str(folder)],
        ["info", str(folder), "--json"],
        ["explain", str(folder), HOSTILE],
        ["predict", str(folder), str(place / "a.npz"), "--top", "30"],
        ["predict", str(folder), str(place / "a.npz"), "--json"],
        ["evaluate", str(folder), str(place / "a.npz")],
        ["evaluate", str(folder), str(place / "a.npz"), "--csv"],
        ["bank", "show", str(made)],
        ["bank", "show", str(made), "--json"],
        ["predict", str(folder), str(place / f"{HOSTILE}.png")],
        ["no\x1bcommand"],
    ):
        run_app(root(), words)
        said = "".join(capsys.readouterr())
        assert all(letter.isprintable() or letter in "\n\t" for letter in said), (words, said)
        assert not any(line.startswith("=x") for line in said.splitlines() if "--csv" in words), said
