"""``wdae train``, ``wdae evaluate`` and ``wdae demo`` from end to end, on small banks."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import wdae

from wdae import synthetic_bank
from wdae.storage.checkpoint import load_checkpoint

SMALL = [
    *("--denoiser.hidden", "16", "--training.steps", "6", "--training.episodes_per_step", "4"),
    *("--training.n_fake", "5", "--training.base_queries", "10", "--training.validate_every", "3"),
    *(
        "--training.validation_episodes",
        "20",
        "--evaluation.episodes",
        "40",
        "--evaluation.step_episodes",
        "20",
    ),
    *("--device", "cpu"),
]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("banks") / "small"
    made = synthetic_bank(
        n_base=16, n_validation=6, n_novel=6, images_per_class=40, dim=24, held_out_per_class=15
    )
    made.save(path)
    return path


@pytest.fixture(scope="module")
def run(bank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "gnn"
    assert wdae("train", "--bank", bank, "-o", path, *SMALL) == 0
    return path


def test_a_run_folder_holds_everything(run: Path) -> None:
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "report.html"):
        assert (run / name).stat().st_size > 0, name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    assert {"loss", "accuracy", "validation", "learning_rate"} <= set(lines[0])
    plots = {p.stem for p in (run / "plots").glob("*.png")}
    assert any("class-graph" in p for p in plots)
    assert len(plots) >= 3
    results = {p.name for p in (run / "results").glob("*.json")}
    assert any(name.startswith("wdae-gnn") for name in results)
    assert any(name.startswith("initial-estimate") for name in results)
    record = json.loads((run / "environment.json").read_text())
    assert record["seed"] == 0
    assert "torch" in record
    page = (run / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'src="http' not in page


def test_recipe_and_bank_that_ship_are_taken_by_their_names(tmp_path: Path) -> None:
    run = tmp_path / "mlp"
    words = ("--recipe", "mini-imagenet/wdae-mlp", "--bank", "embedded")
    assert wdae("train", *words, "-o", run, *SMALL, "--evaluation.shots", "1") == 0
    recipe = (run / "recipe.yaml").read_text()
    assert "kind: mlp" in recipe and "hidden: 16" in recipe


def test_an_existing_run_is_not_written_over(
    run: Path, bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "model.safetensors").read_bytes()
    assert wdae("train", "--bank", bank, "-o", run, *SMALL) == 2
    assert str(run) in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == before


def test_evaluate_prints_json_and_csv_of_the_same_figures(
    run: Path, bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["evaluate", run, "--bank", bank, "--episodes", "30", "--shots", "1", "5", "--device", "cpu"]
    assert wdae(*common, "--json") == 0
    entries = json.loads(capsys.readouterr().out)
    assert {(e["method"], e["n_shot"]) for e in entries} == {
        (m, k) for m in ("initial-estimate", "wdae-gnn") for k in (1, 5)
    }
    assert wdae(*common, "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_key = {(r["method"], int(r["n_shot"]), r["metric"]): float(r["mean"]) for r in rows}
    for entry in entries:
        for metric, value in entry["metrics"].items():
            assert by_key[entry["method"], entry["n_shot"], metric] == pytest.approx(value["mean"])
    assert {"novel", "base", "all", "all_prior", "harmonic"} <= set(entries[0]["metrics"])


def test_gains_are_taken_over_the_reference(
    run: Path, bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--bank", bank, "--episodes", "10", "--queries", "3", "--shots", "1"]
    assert wdae("evaluate", "fine-tune", "--reference", run, *few) == 0
    told = capsys.readouterr().out
    assert "initial-estimate" not in told and "Gain over wdae-gnn" in told
    assert told.index("wdae-gnn") < told.index("fine-tune")


def test_evaluate_all_way_has_top_5(run: Path, bank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--protocol", "all-way", "--episodes", "3", "--shots", "2", "--device", "cpu", "--json"]
    assert wdae("evaluate", run, "--bank", bank, *words) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries[0]["n_way"] == 6
    assert {"novel_top5", "all_top5", "all_prior_top5"} <= set(entries[0]["metrics"])


def test_a_model_of_another_feature_size_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_bank(
        n_base=8, n_validation=0, n_novel=6, images_per_class=30, dim=12, held_out_per_class=8
    ).save(tmp_path / "other")
    assert wdae("evaluate", run, "--bank", tmp_path / "other", "--episodes", "5") == 2
    error = capsys.readouterr().err
    assert "24" in error
    assert "12" in error


def test_an_altered_model_is_refused(
    run: Path, bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    assert wdae("evaluate", tmp_path / "model.safetensors", "--bank", bank, "--episodes", "5") == 2
    assert "altered" in capsys.readouterr().err


def test_demo_prints_gains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert wdae("demo", "-o", folder, "--episodes", "20", "--steps", "2", "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert "wdae-gnn" in out
    assert "wdae-mlp" in out
    assert "Gain over initial-estimate" in out
    assert (folder / "report.html").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_a_checkpoint_and_ends_cleanly(
    bank: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "long"
    steps = 4000
    words = [
        str(steps) if before == "--training.steps" else word
        for before, word in zip(["", *SMALL], SMALL, strict=False)
    ]
    command = [sys.executable, "-m", "wdae.cli.main", "train", "--bank", str(bank), "-o", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 150
    while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(number)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 128 + number, error
    assert "Traceback" not in error
    step = load_checkpoint(folder / "checkpoint.safetensors").state["progress"]["step"]
    assert 0 < step < steps


def test_the_initial_estimate_alone_has_no_gains(bank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wdae("evaluate", "initial-estimate", "--bank", bank, "--episodes", "5", "--queries", "3") == 0
    said = capsys.readouterr().out
    assert "initial-estimate" in said and "Gain" not in said
