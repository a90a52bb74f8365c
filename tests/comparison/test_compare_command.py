"""``wdae compare`` and ``wdae methods`` from the command line, on a small bank."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from command_line import wdae

from wdae.bank import FeatureBank
from wdae.comparison import run as comparison
from wdae.comparison.config import CompareRecipe
from wdae.comparison.table import BEGIN, END, ComparisonTable
from wdae.config import load
from wdae.evaluation.paper import MINI_IMAGENET, paper_figures
from wdae.evaluation.table import ResultTable
from wdae.methods import names
from wdae.stage2.config import MetaRecipe

METHODS = "fine-tune,lwof-attention,tpn,wdae-mlp,simpleshot"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small_bank: FeatureBank) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    small_bank.save(folder / "bank")
    words = ["--bank", folder / "bank", "--methods", METHODS, "-o", folder / "run", "--device", "cpu"]
    words += ["--episodes", 30, "--queries", 5, "--steps", 3, "--validation-episodes", 10]
    assert wdae("compare", *words, "--document", folder / "results.md") == 0
    return folder


def test_everything_is_in_the_run_folder(finished: Path) -> None:
    run = finished / "run"
    records = list(csv.DictReader(io.StringIO((run / "comparison.csv").read_text())))
    assert [r["method"] for r in records[:6]] == ["initial-estimate", *METHODS.split(",")]
    assert {r["n_shot"] for r in records} == {"1", "5"}
    by_name = {r["method"]: r for r in records if r["n_shot"] == "1"}
    assert by_name["tpn"]["classes"] == "novel only" and by_name["tpn"]["all"] == ""
    assert by_name["tpn"]["transductive"] == "True"
    assert by_name["fine-tune"]["classes"] == "novel and base"
    assert by_name["fine-tune"]["parameters"] == "0"
    assert int(by_name["lwof-attention"]["parameters"]) > 24 * 24
    assert float(by_name["lwof-attention"]["training_seconds"]) > 0
    assert float(by_name["lwof-attention"]["episodes_per_second"]) > 0
    gain = float(by_name["fine-tune"]["novel"]) - float(by_name["initial-estimate"]["novel"])
    assert float(by_name["fine-tune"]["novel_difference"]) == pytest.approx(gain, abs=1e-6)
    assert by_name["initial-estimate"]["novel_difference"] == ""
    assert json.loads((run / "comparison.json").read_text())[0]["method"] == "initial-estimate"
    assert "(transductive)" in (run / "report.html").read_text()
    assert "(transductive)" in (run / "comparison.md").read_text()


def test_a_method_is_trained_for_each_number_of_shots(finished: Path) -> None:
    run = finished / "run"
    trained = {folder.name for folder in (run / "methods").iterdir()}
    assert {"lwof-attention-1shot", "lwof-attention-5shot", "wdae-mlp", "simpleshot"} <= trained
    assert "lwof-attention" not in trained
    recipe = load(MetaRecipe, run / "methods" / "lwof-attention-5shot" / "recipe.yaml")
    assert recipe.training.shots == (5,) and recipe.compile is False
    for record in json.loads((run / "comparison.json").read_text()):
        if record["method"] == "lwof-attention":
            cost = json.loads((run / f"methods/lwof-attention-{record['n_shot']}shot/cost.json").read_text())
            assert record["start_kept"] is cost["start_kept"]
            gained = cost["validation_gain"] > cost["validation_gain_ci95"]
            assert cost["start_kept"] is not gained
            assert ("†" in (run / "comparison.md").read_text()) or gained


def test_finished_methods_are_not_run_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (finished / "run" / "comparison.csv").read_text()
    trained: list[str] = []
    measured: list[str] = []
    train, measure = comparison.train_method, comparison.few_way

    def counting_train(run, recipe, bank, *, resume=False):  # type: ignore[no-untyped-def]
        trained.append(recipe.name)
        return train(run, recipe, bank, resume=resume)

    def counting_measure(method, *args, **kwargs):  # type: ignore[no-untyped-def]
        measured.append(method.name)
        return measure(method, *args, **kwargs)

    monkeypatch.setattr(comparison, "train_method", counting_train)
    monkeypatch.setattr(comparison, "few_way", counting_measure)
    again = ("compare", "--bank", finished / "bank", "--resume", "-o", finished / "run")
    assert wdae(*again) == 0
    assert (trained, measured) == ([], [])
    assert (finished / "run" / "comparison.csv").read_text() == before

    # A method that was cut short goes on: its model is there, one of its results is not.
    next((finished / "run" / "results").glob("tpn-*5shot*.json")).unlink()
    assert wdae(*again) == 0
    assert (trained, measured) == ([], ["tpn"])
    assert len((finished / "run" / "comparison.csv").read_text().splitlines()) == len(before.splitlines())


def test_the_document_keeps_what_stands_around_the_table(finished: Path) -> None:
    page = finished / "results.md"
    assert page.read_text().count("(transductive) |") == 2
    page.write_text("# Before\n\n" + page.read_text() + "\nAfter\n")
    table = ResultTable.load(finished / "run" / "results")
    ComparisonTable(table, "fine-tune", MINI_IMAGENET, "ResNet-12").into(page)
    text = page.read_text()
    assert text.startswith("# Before") and text.endswith("After\n")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert "differences to fine-tune" in text
    assert "61.07 (WRN-28-10)" not in text  # wDAE-GNN is not among them
    assert "60.61 (WRN-28-10)" in text and "the paper's backbones differ" in text


def test_the_paper_stands_beside_its_own_data_only(small_bank: FeatureBank) -> None:
    assert paper_figures(small_bank) is None
    mini = FeatureBank.build(
        small_bank.features,
        small_bank.labels,
        small_bank.class_names,
        small_bank.parts,
        info={"source": "mini-ImageNet"},
    )
    assert paper_figures(mini) is MINI_IMAGENET
    assert set(MINI_IMAGENET) <= set(names())


def test_an_existing_run_is_not_written_over(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wdae("compare", "--methods", "fine-tune", "-o", finished / "run") == 2
    assert "--resume" in capsys.readouterr().err


def test_the_bank_is_named_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made a run chose the bank that its recipe names: that is compared, never opened."""
    for words in ((), ("--bank", finished)):
        assert wdae("compare", *words, "--resume", "-o", finished / "run") == 2
        wanted = f"wdae compare --bank {finished / 'bank'} -o {finished / 'run'} --resume"
        assert wanted in capsys.readouterr().err


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert wdae("methods") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names())
    assert "transductive" in said and "Mishra 2018" in said
    assert wdae("methods", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["tpn"]["transductive"] and not rows["tpn"]["joint"]
    assert rows["lwof-attention"]["joint"] and rows["lwof-attention"]["trained"]
    assert rows["wdae-gnn+"]["paper"] == "ours" and rows["wdae-gnn+"]["joint"]
    assert wdae("methods", "--recipe", "wdae-gnn+") == 0
    assert "name: wdae-gnn+" in capsys.readouterr().out


def test_a_methods_recipe_can_be_trained_by_itself(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wdae("methods", "--recipe", "lwof-attention") == 0
    (tmp_path / "recipe.yaml").write_text(capsys.readouterr().out)
    assert load(MetaRecipe, tmp_path / "recipe.yaml").method == "lwof-attention"
    words = ["--training.steps", 3, "--training.validation_episodes", 10, "--evaluation.episodes", 20]
    words += ["--evaluation.queries", 5, "--device", "cpu", "--bank", finished / "bank"]
    assert wdae("train", "--recipe", tmp_path / "recipe.yaml", *words, "-o", tmp_path / "run") == 0
    assert "lwof-attention" in capsys.readouterr().out
    words = ["--bank", finished / "bank", "--episodes", 10, "--queries", 5, "--device", "cpu"]
    assert wdae("evaluate", tmp_path / "run", "fine-tune", *words) == 0
    assert "lwof-attention" in capsys.readouterr().out
    assert wdae("methods", "--recipe", "fine-tune") == 2
    assert "nothing to train" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", sorted((Path(__file__).parents[2] / "recipes" / "compare").glob("*.yaml")))
def test_recipes_of_comparisons_are_sound(recipe: Path) -> None:
    asked = load(CompareRecipe, recipe)
    words = [one.word for one in comparison.chosen_methods(asked)]
    assert words[0] == asked.reference and len(words) == len({*words})
    assert "all" not in words
    if "all" in asked.methods:
        assert {*names()} <= {*words}
        assert len(words) == len(names()) + len(asked.methods) - 1
    command = recipe.read_text().splitlines()[0]
    assert command.startswith(f"# wdae compare --recipe recipes/compare/{recipe.name}")
