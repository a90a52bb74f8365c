"""Names with accents are one class, however Unicode writes them: macOS takes letters apart."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import torch
from command_line import wdae
from tiny_backbone import paint

from wdae.classifier import BaseKnowledge, Model, load
from wdae.classifier.explain import explain
from wdae.classifier.predictions import measure
from wdae.errors import ModelError
from wdae.methods import InitialEstimate

TYPED = "gr\u00fcn"
APART = unicodedata.normalize("NFD", TYPED)


@pytest.mark.parametrize(("base", "other"), [(TYPED, APART), (APART, TYPED)])
def test_a_base_class_is_found_in_either_form(base: str, other: str) -> None:
    model = Model(BaseKnowledge((base, "dog"), torch.eye(2, 4), torch.tensor([9, 9]), InitialEstimate()))
    with pytest.raises(ModelError, match="exists already"):
        model.add({other: torch.eye(4)[2:3]})
    model.add({other: torch.eye(4)[2:3]}, update=True)
    assert model.names == (base, "dog") and model.shots(base) == 1
    assert explain(model, other).name == base
    assert model.head_for(only=[other, "dog"]).names == (base, "dog")
    assert measure(model, {other: torch.eye(4)[:1]}).figures["accuracy"] == 1.0
    with pytest.raises(ModelError, match="is a base class"):
        model.remove([other])
    model.add({"lime": torch.eye(4)[3:]})
    with pytest.raises(ModelError, match="exists already"):
        model.rename("lime", other)
    model.merge(["lime"], other)
    assert model.shots(base) == 2


def test_an_added_class_is_found_in_either_form() -> None:
    model = Model(BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([9, 9]), InitialEstimate()))
    model.add({APART: torch.eye(4)[2:3]})
    assert model.added == (TYPED,)
    model.add({APART: torch.eye(4)[3:]}, update=True)
    assert model.added == (TYPED,) and model.shots(TYPED) == 2
    model.rename(APART, "green")
    model.undo()
    model.remove([APART])
    assert model.added == ()


def test_the_commands_take_folders_and_words_in_either_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paint(tmp_path / "base", ["red", "blue", "yellow", "violet"], 8)
    model, new = tmp_path / "model", tmp_path / "new"
    options = ("--backbone", "tiny_backbone:factory", "--method", "initial-estimate")
    assert wdae("learn", tmp_path / "base", "-o", model, *options) == 0
    paint(new, ["green"], 3, seed=1)
    (new / "green").rename(new / APART)
    capsys.readouterr()
    assert wdae("add", model, new) == 0  # of a new class in a folder that comes from macOS
    assert f"{TYPED}: 3 examples added, 3 in all" in capsys.readouterr().out
    assert load(model).added == (TYPED,)
    assert wdae("add", model, "--class", APART, new / APART) == 2
    assert "exists already" in capsys.readouterr().err
    assert wdae("add", model, "--class", APART, new / APART, "--update") == 0
    assert "3 were there already" in capsys.readouterr().out
    assert wdae("evaluate", model, new, "--json") == 0
    assert [row["class"] for row in json.loads(capsys.readouterr().out)["classes"]] == [TYPED]
    assert wdae("predict", model, new, "--only", APART) == 0
    assert capsys.readouterr().out.count(f"\t{TYPED}\t100.0%") == 3
    assert wdae("explain", model, APART) == 0
    assert wdae("rename", model, APART, "lime") == 0 and wdae("undo", model) == 0
    assert wdae("remove", model, APART) == 0
    assert load(model).added == ()


def test_folders_of_both_forms_are_one_class(tmp_path: Path) -> None:
    """As where a folder was copied from a Mac beside one that was made here."""
    from wdae.classifier.inputs import read_examples

    paint(tmp_path / "base", ["red", "blue", "yellow", "violet"], 8)
    options = ("--backbone", "tiny_backbone:factory", "--method", "initial-estimate")
    assert wdae("learn", tmp_path / "base", "-o", tmp_path / "model", *options) == 0
    for seed, form in enumerate((TYPED, APART)):
        paint(tmp_path / "new", ["green"], 2, seed=seed)
        (tmp_path / "new" / "green").rename(tmp_path / "new" / form)
    if len(list((tmp_path / "new").iterdir())) < 2:
        pytest.skip("this file system takes both forms for one")
    found = read_examples(load(tmp_path / "model", trust="tiny_backbone:factory"), [tmp_path / "new"], None)
    assert {name: len(rows) for name, rows in found.features.items()} == {TYPED: 4}
