"""``wdae reproduce`` from pictures to tables, on small made trees in the benchmarks' exact layouts."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import made_trees
import pytest
import torch
from command_line import wdae
from made_trees import N_BASE, N_NOVEL, N_VALIDATION, STAGE1, STAGE2

from wdae import FeatureBank, Part
from wdae.data.splits import load_split
from wdae.evaluation.table import ResultTable
from wdae.reproduce import roles

SMALL = ["--held-out", 4, "--episodes", 10, "--curve-episodes", 10, "--queries", 3, "--device", "cpu"]
SMALL += ["--allow-missing", "--stage1", *STAGE1, "--stage2", *STAGE2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def record_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def test_mini_imagenet_trains_a_model_for_each_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = made_trees.mini_imagenet(tmp_path / "data"), tmp_path / "run"
    words = ["reproduce", "mini-imagenet", "--data", data, "-o", run, "--curve-shots", 1, 5, *SMALL]
    words += ["--quick", "--rows", "wdae-mlp,wdae-mlp-trainval"]
    assert wdae(*words) == 0
    record = record_of(run)
    assert [(t["number"], t["role"]) for t in record["tables"]] == [
        (2, "whole"),
        (2, "trainval"),
        (3, "held-out"),
    ]
    counts = {role: bank["images"] for role, bank in record["banks"].items()}
    assert counts["whole"]["base-train"] == N_BASE * 16 and counts["whole"]["base-held-out"] == 0
    assert counts["held-out"]["base-held-out"] == N_BASE * 4
    assert counts["trainval"]["base-train"] == (N_BASE + N_VALIDATION) * 16
    assert counts["trainval"]["validation"] == 0
    assert record["banks"]["whole"]["seconds"].keys() == {"stage1", "extraction"}
    assert "not its figures" in (run / "results.md").read_text()
    # A model of stage 1 is as good as a bank; what is trained already is not trained again.
    before = (run / "stage1/whole/metrics.jsonl").stat().st_mtime_ns
    resume = ["reproduce", "mini-imagenet", "--resume", "-o", run, "--data", data, "--stage1", *STAGE1]
    assert wdae(*resume) == 0
    assert (run / "stage1/whole/metrics.jsonl").stat().st_mtime_ns == before
    given = [
        "--model",
        run / "stage1/whole",
        "--rows",
        "wdae-mlp",
        "--held-out-bank",
        run / "banks/held-out",
    ]
    assert wdae(*words[:4], *given, "-o", tmp_path / "again", "--curve-shots", 1, 5, *SMALL) == 0
    assert (tmp_path / "again/banks/whole").is_dir() and not (tmp_path / "again/stage1").exists()
    again, first = record_of(tmp_path / "again")["tables"][0], record["tables"][0]
    assert [e["metrics"] for e in again["rows"]] == [e["metrics"] for e in first["rows"]]
    capsys.readouterr()
    assert wdae(*resume, "--held-out", 3) == 2
    assert "made with other settings" in capsys.readouterr().err


def test_mini_imagenet_trains_one_network_for_all_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by default: one training, features of several views, and nothing is trained twice."""
    data, run = made_trees.mini_imagenet(tmp_path / "data"), tmp_path / "run"
    words = ["reproduce", "mini-imagenet", "--data", data, "-o", run, "--curve-shots", 1, 5, *SMALL]
    small = ["mixup=null", "augment.size=16", "checkpoint_every=1"]
    words[words.index("--stage2") : words.index("--stage2")] = small
    words += ["--sizes", 16, "--crops", 2, "--rows", "wdae-mlp,wdae-mlp-trainval,wdae-gnn-paper"]
    assert wdae(*words) == 0
    said = capsys.readouterr()
    assert "one training of 2 epochs" in said.out + said.err
    assert [p.name for p in (run / "stage1").iterdir() if p.is_dir()] == ["held-out"]
    record = record_of(run)
    assert record["banks"].keys() == {"held-out"}  # one network, as in the paper
    assert {(t["number"], t["role"]) for t in record["tables"]} == {(2, "held-out"), (3, "held-out")}
    bank = record["banks"]["held-out"]
    assert bank["crops"] == [2]
    weights = run / "stage1" / "held-out" / "model" / "model.safetensors"
    assert bank["training"]["weights"] == sha256(weights.read_bytes()).hexdigest()
    why = {entry["row"]: entry["why"] for entry in record["not_run"]}
    assert "--quick" in why["wdae-mlp-trainval"]
    # Interrupted while features were taken: the network is not trained again.
    metrics = run / "stage1" / "held-out" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    for gone in (run / "banks", run / "rows"):
        shutil.rmtree(gone)
    words = ["reproduce", "mini-imagenet", "--resume", "-o", run, "--data", data, "--stage1", *STAGE1, *small]
    seconds = [float((run / "seconds.json").read_text())]
    with monkeypatch.context() as patch:
        patch.setattr(roles, "run_extraction", interrupt)
        assert wdae(*words) == 130
    seconds.append(float((run / "seconds.json").read_text()))
    assert wdae(*words) == 0
    assert seconds[0] < seconds[1] < record_of(run)["seconds"]  # the interrupted call counts
    assert metrics.stat().st_mtime_ns == before
    assert record_of(run)["banks"]["held-out"]["training"] == bank["training"]


def test_tiered_imagenet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = made_trees.tiered_imagenet(tmp_path / "data"), tmp_path / "run"
    words = ["reproduce", "tiered-imagenet", "--data", data, "-o", run, "--curve-shots", 1, 5, *SMALL]
    assert wdae(*words, "--sizes", 4, 16) == 2
    assert not run.exists()
    assert wdae(*words, "--sizes", 16, 20, "--crops", 2) == 0
    record = record_of(run)
    assert record["banks"]["whole"]["sizes"] == [[16, 20]]
    assert record["banks"]["whole"]["crops"] == [2]
    assert FeatureBank.open(run / "banks/whole").info["sizes"] == [16, 20]
    for other in (("--sizes", 16), ("--crops", 3)):
        capsys.readouterr()
        named = ("--data", data, "--stage1", *STAGE1)
        assert wdae("reproduce", "tiered-imagenet", "--resume", "-o", run, *named, *other) == 2
        assert "made with other settings" in capsys.readouterr().err
    (table,) = record["tables"]
    assert (table["number"], table["role"]) == (4, "whole")
    rows = {entry["row"]: entry for entry in table["rows"] if entry["n_shot"] == 5}
    assert rows.keys() >= {"initial-estimate", "lwof", "wdae-mlp", "wdae-gnn"}
    assert rows["wdae-gnn"]["paper"]["novel"]["mean"] == pytest.approx(0.8309)
    assert rows["wdae-mlp"]["paper"] == {}
    assert rows["wdae-gnn"]["gains"].keys() == {"novel"}
    assert record["banks"]["whole"]["classes"]["novel"] == N_NOVEL


def test_imagenet_fs_learns_from_train_and_asks_for_val(tmp_path: Path) -> None:
    data, run = made_trees.imagenet_fs(tmp_path / "data"), tmp_path / "run"
    words = ["--rows", "lwof,wdae-gnn,wdae-gnn-no-noise,logistic-regression,sgm-h", *SMALL]
    assert wdae("reproduce", "imagenet-fs", "--data", data, "-o", run, *words) == 0
    bank = FeatureBank.open(run / "banks/whole")
    assert bank.query_only is not None
    assert sum(bank.select(Part.NOVEL).counts.tolist()) == N_NOVEL * 22
    assert sum(bank.select(Part.NOVEL, queries=True).counts.tolist()) == N_NOVEL * 3
    assert int(bank.query_only.sum()) == (N_BASE + N_VALIDATION + N_NOVEL) * 3
    assert torch.equal(
        bank.query_only & (bank.parts == Part.BASE_TRAIN.code), torch.zeros_like(bank.query_only)
    )
    table, others = record_of(run)["tables"]
    assert table["number"] == others["number"] == 1
    figures = {e["row"]: e["paper"] for e in others["rows"] if e["n_shot"] == 5}
    assert figures["sgm-h"] == {"all_top5": {"mean": pytest.approx(0.713), "ci95": pytest.approx(0.0005)}}
    assert figures["logistic-regression"]["novel_top5"]["mean"] == pytest.approx(0.648)
    assert table["metrics"] == ["novel_top5", "all_top5", "base_top5", "all_prior_top5", "area"]
    assert {entry["n_shot"] for entry in table["rows"]} == {1, 2, 5, 10, 20}
    gnn = next(e for e in table["rows"] if (e["row"], e["n_shot"]) == ("wdae-gnn", 5))
    assert gnn["step"] == 0.6 and gnn["step_origin"] == "the recipe"
    assert gnn["paper"]["all_top5"]["mean"] == pytest.approx(0.732)
    # Queries are the val/ pictures of the novel classes and of the base classes that count in the test.
    result = next(iter(ResultTable.load(run / "rows/whole/initial-estimate/results")))
    n_base_queries = len(set(load_split("imagenet-fs").base_test) & set(bank.class_names)) * 3
    right = result.per_episode["base"] * n_base_queries
    assert n_base_queries == N_BASE // 2 * 3
    assert right == pytest.approx(right.round(), abs=1e-4)


def test_a_benchmark_with_classes_missing_is_refused_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = made_trees.tiered_imagenet(tmp_path / "data")
    words = [word for word in SMALL if word != "--allow-missing"]
    assert wdae("reproduce", "tiered-imagenet", "--data", data, "-o", tmp_path / "run", *words) == 2
    assert "missing" in capsys.readouterr().err
