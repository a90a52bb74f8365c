"""What ``wdae compare`` takes beside names: options, run folders, recipes; and ``wdae runs`` beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import wdae

from wdae.bank import FeatureBank
from wdae.comparison.entries import entry, split_words
from wdae.config import load
from wdae.errors import ModelError
from wdae.runs.run import Run
from wdae.stage2.config import MetaRecipe

SHORT = ["--training.steps", 2, "--training.validate-every", 1, "--training.episodes-per-step", 2]
SHORT += ["--training.n-fake", 4, "--training.base-queries", 10, "--training.validation-episodes", 10]
SHORT += ["--denoiser.hidden", 4, "--evaluation.step-episodes", 10, "--evaluation.episodes", 20]
RECIPE = """name: two steps
denoiser: {hidden: 4}
training: {steps: 2, validate_every: 1, n_fake: 4, episodes_per_step: 2, validation_episodes: 10}
evaluation: {step_episodes: 10}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, small_bank: FeatureBank) -> Path:
    """A bank, two runs of wdae train that differ in their noise, and a recipe."""
    folder = tmp_path_factory.mktemp("entries")
    small_bank.save(folder / "bank")
    for noise in (0.02, 0.3):
        words = ["--bank", folder / "bank", "-o", folder / f"noise-{noise}", "--device", "cpu", *SHORT]
        assert wdae("train", *words, "--training.noise", noise, "--evaluation.queries", 5) == 0
    (folder / "mine.yaml").write_text(RECIPE)
    return folder


def test_options_runs_and_recipes_stand_beside_names(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    given = "lda:shrink=0.9,lda:shrink=0.5,wdae-mlp:denoiser.hidden=4,training.noise=0.3,noise-0.3,mine.yaml"
    small = ["--episodes", 20, "--queries", 5, "--steps", 2, "--validation-episodes", 10, "--device", "cpu"]
    words = ["compare", "--bank", "bank", "--methods", given, "--shots", 1, *small, "-o", "run"]
    assert wdae(*words, "--reference", "noise-0.02", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    wanted = ["noise-0.02", *split_words([given])]
    assert [record["method"] for record in records] == wanted
    assert len({record["novel"] for record in records}) > 3
    assert records[0]["novel_difference"] is None and records[1]["novel_difference"] is not None
    assert records[4]["training_seconds"] is None  # it was trained before
    trained = {path.name: load(MetaRecipe, path / "recipe.yaml") for path in Path("run/methods").iterdir()}
    assert len(trained) == 2
    with_keys = next(recipe for name, recipe in trained.items() if name.startswith("wdae-mlp"))
    assert (with_keys.denoiser.hidden, with_keys.training.noise) == (4, 0.3)
    assert next(recipe for name, recipe in trained.items() if "mine" in name).name == "two steps"

    # A file's word opens nothing: folders and recipes are named again.
    again = ["compare", "--bank", "bank", "--resume", "-o", "run"]
    assert wdae(*again) == 2
    assert "was begun with methods lda:shrink=0.9" in capsys.readouterr().err
    assert wdae(*again, "--methods", given, "--reference", "noise-0.02", "--json") == 0
    assert json.loads(capsys.readouterr().out) == records


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lda:shrink", "key=value"),
        ("lda:shrnk=1", "shrnk"),
        ("wdae-gnn:hidden=4", "denoiser.hidden=160"),
        ("wdae-mlp:training.nois=1", "did you mean 'noise'"),
        ("no/such", "no run folder"),
        ("lwof-atention", "lwof-attention"),
    ],
)
def test_what_is_none_of_these_is_refused_before_anything_is_written(
    word: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wdae("compare", "--methods", word, "-o", tmp_path / "run") == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="trained to its end"):
        entry(str(tmp_path))


def test_runs_side_by_side(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert wdae("runs", "noise-0.02", "noise-0.3", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert list(records[0]) == ["run", "training.noise", "best validation", "step", "last validation"]
    assert [record["training.noise"] for record in records] == [0.02, 0.3]
    assert wdae("runs", "noise-0.02", "noise-0.3", "--test", "-o", "sweep") == 0
    shown = capsys.readouterr().out
    assert "novel, 1-shot" in shown and "not to choose by" in shown
    assert Path("sweep/curves.png").stat().st_size > 5_000
    assert Path("sweep/runs.csv").read_text().count("\n") == 3
    assert wdae("runs", "noise-0.02", "--metric", "los") == 2
    assert "did you mean 'loss'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "best", "step"), [("loss", 0.5, 2), ("class_loss", 0.1, 3), ("validation", 0.8, 2)]
)
def test_the_best_of_a_loss_is_its_smallest(
    metric: str, best: float, step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", MetaRecipe())
    curves = {"loss": (2.0, 0.5, 0.7), "class_loss": (0.4, 0.3, 0.1), "validation": (0.3, 0.8, 0.6)}
    for at in range(3):
        run.log(step=at + 1, **{name: values[at] for name, values in curves.items()})
    assert wdae("runs", run.path, "--metric", metric, "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record[f"best {metric}"], record["step"]) == (best, step)
    assert record[f"last {metric}"] == curves[metric][-1]


def test_a_folder_with_an_equals_sign_is_an_entry_of_its_own() -> None:
    words = split_words(["lda:shrink=0.9,runs/noise=0.02,wdae-gnn:training.noise=0.1,training.n_fake=5"])
    assert words == ("lda:shrink=0.9", "runs/noise=0.02", "wdae-gnn:training.noise=0.1,training.n_fake=5")
