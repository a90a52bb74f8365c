"""``wdae reproduce`` from feature banks: figures, pairing, resuming, refusals."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from command_line import wdae

from wdae.bank import FeatureBank
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.parts import Part
from wdae.reproduce.benchmarks import BENCHMARKS
from wdae.storage.checkpoint import load_checkpoint
from wdae.synthetic import synthetic_bank

ROWS = "lwof,wdae-mlp,wdae-gnn,wdae-gnn-no-noise,wdae-gnn-trainval,wdae-gnn-paper,lwof-balanced"
ROWS += ",initial-estimate-balanced"
SMALL = [
    "--episodes",
    40,
    "--curve-episodes",
    20,
    "--curve-shots",
    1,
    2,
    5,
    "--queries",
    6,
    "--device",
    "cpu",
]
SMALL += [
    "--stage2",
    "training.steps=6",
    "training.n_fake=5",
    "denoiser.hidden=16",
    "training.validate_every=3",
]
SMALL += ["training.validation_episodes=20", "evaluation.step_episodes=20"]


def recast(bank: FeatureBank, old: Part, new: Part, weights: torch.Tensor | None = None) -> FeatureBank:
    """The bank with one part's images in another."""
    parts = torch.where(bank.parts == old.code, new.code, bank.parts.long())
    scale = bank.cosine_scale if weights is not None else None
    return FeatureBank.build(
        bank.features, bank.labels, bank.class_names, parts, weights, scale, {"backbone": "drawn"}
    )


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank with held-out images, the same with none, and one whose validation classes are base classes."""
    folder = tmp_path_factory.mktemp("banks")
    bank = synthetic_bank(16, 6, 7, 30, 24, seed=3, held_out_per_class=6)
    bank.save(folder / "held-out")
    recast(bank, Part.BASE_HELD_OUT, Part.BASE_TRAIN, bank.base_weights).save(folder / "whole")
    recast(bank, Part.VALIDATION, Part.BASE_TRAIN).save(folder / "trainval")
    return folder


@pytest.fixture(scope="module")
def finished(banks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reproduce") / "run"
    assert wdae("reproduce", "mini-imagenet", *named(banks), "--rows", ROWS, *SMALL, "-o", run) == 0
    return run


def named(banks: Path) -> list[object]:
    words = ["--bank", banks / "whole", "--held-out-bank", banks / "held-out"]
    return [*words, "--trainval-bank", banks / "trainval"]


def record_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def line(table: dict[str, Any], row: str, n_shot: int) -> dict[str, Any]:
    return next(entry for entry in table["rows"] if (entry["row"], entry["n_shot"]) == (row, n_shot))


def values(run: Path, role: str, row: str, n_shot: int) -> Result:
    table = ResultTable.load(run / "rows" / role / row / "results")
    return next(result for result in table if (result.n_shot, result.n_episodes) == (n_shot, 40))


@pytest.mark.parametrize("option", ["--data", "--bank", "--held-out-backbone"])
def test_a_place_that_is_not_there_leaves_no_run_behind(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command with the right place then runs, without --force."""
    words = ["reproduce", "mini-imagenet", option, tmp_path / "gone", "-o", tmp_path / "run"]
    words += ["--data", tmp_path] if option == "--held-out-backbone" else []
    assert wdae(*words) == 2
    assert f"gone does not exist; give what is there as {option}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_tables_are_the_papers_and_each_is_measured_on_its_own_features(finished: Path) -> None:
    record = record_of(finished)
    assert [(t["number"], t["role"]) for t in record["tables"]] == [
        (2, "whole"),
        (2, "trainval"),
        (3, "held-out"),
        (3, "held-out"),
    ]
    two, trainval, three, balanced = record["tables"]
    assert {entry["row"] for entry in two["rows"]} == {
        "initial-estimate", "lwof", "wdae-mlp", "wdae-gnn", "wdae-gnn-no-noise", "wdae-gnn-paper",
    }  # fmt: skip
    assert {entry["row"] for entry in trainval["rows"]} == {"initial-estimate", "wdae-gnn-trainval"}
    assert {entry["row"] for entry in three["rows"]} == {"initial-estimate", "lwof", "wdae-gnn-paper"}
    assert {entry["row"] for entry in balanced["rows"]} == {
        "initial-estimate-balanced", "lwof-balanced", "wdae-mlp", "wdae-gnn",
    }  # fmt: skip
    assert two["metrics"] == ["novel"] and three["metrics"] == ["novel", "all", "base", "area"]
    left_out = {entry["row"]: entry["why"] for entry in record["not_run"]}
    assert "--rows" in left_out["wdae-mlp-no-noise"]


def test_a_line_is_the_mean_the_papers_figure_and_the_paired_gain(finished: Path) -> None:
    three = record_of(finished)["tables"][2]
    for n_shot, figure in ((1, 0.5655), (5, 0.67)):
        gnn = line(three, "wdae-gnn-paper", n_shot)
        measured = values(finished, "held-out", "wdae-gnn-paper", n_shot)
        assert gnn["bank_digest"] == measured.bank_digest is not None  # as files of wdae compare name it
        own = measured.per_episode
        start = values(finished, "held-out", "initial-estimate", n_shot).per_episode
        assert gnn["metrics"]["all"]["mean"] == pytest.approx(own["all"].mean())
        assert gnn["paper"]["all"]["mean"] == pytest.approx(figure)
        assert gnn["difference"]["all"] == pytest.approx(own["all"].mean() - figure, abs=1e-6)
        for metric in ("novel", "all", "base"):
            gain = (own[metric].astype(np.float64) - start[metric]).tolist()
            assert gnn["gains"][metric]["mean"] == pytest.approx(np.mean(gain), abs=1e-9)
            assert gnn["gains"][metric]["ci95"] == pytest.approx(1.96 * np.std(gain, ddof=1) / 40**0.5)
    assert "paper" not in json.dumps(line(three, "initial-estimate", 1)["paper"])  # the paper has none here


def test_a_table_has_the_balance_in_every_row_or_in_none(finished: Path) -> None:
    _, _, plain, balanced = record_of(finished)["tables"]
    assert not any(entry["balanced"] for entry in plain["rows"])
    assert all(entry["balanced"] for entry in balanced["rows"])
    assert all(entry["paper"] == {} for entry in balanced["rows"])  # the paper has no such scoring
    assert balanced["reference"] == "initial-estimate-balanced"
    start = values(finished, "held-out", "initial-estimate-balanced", 1).per_episode["all"]
    own = values(finished, "held-out", "lwof-balanced", 1).per_episode["all"]
    gain = line(balanced, "lwof-balanced", 1)["gains"]["all"]["mean"]
    assert gain == pytest.approx(np.mean(own.astype(np.float64) - start), abs=1e-9)
    page = (finished / "results.md").read_text()
    assert "Gains are over the row initial estimate, balanced" in page


def test_rows_of_one_training_train_once_and_give_the_same_as_alone(
    banks: Path, finished: Path, tmp_path: Path
) -> None:
    for row, twin in (("wdae-gnn-paper", "wdae-gnn"), ("lwof-balanced", "lwof"), ("wdae-mlp", None)):
        record = json.loads((finished / f"rows/held-out/{row}/row.json").read_text())
        assert record.get("trained_as") == twin
    run = tmp_path / "run"
    words = ["--held-out-bank", banks / "held-out", "--rows", "wdae-gnn-paper", *SMALL, "-o", run]
    assert wdae("reproduce", "mini-imagenet", *words) == 0
    assert "trained_as" not in json.loads((run / "rows/held-out/wdae-gnn-paper/row.json").read_text())
    both = [values(one, "held-out", "wdae-gnn-paper", 5).per_episode for one in (finished, run)]
    for metric in ("novel", "all", "base"):
        assert np.array_equal(both[0][metric], both[1][metric])


def test_the_papers_row_has_the_papers_steps(finished: Path) -> None:
    for n_shot, step in ((1, 1.0), (5, 0.5)):
        found = line(record_of(finished)["tables"][2], "wdae-gnn-paper", n_shot)
        assert (found["step"], found["step_origin"]) == (step, "the recipe")


def test_base_pictures_that_were_fitted_on_are_no_queries(banks: Path, finished: Path) -> None:
    bank = FeatureBank.open(banks / "held-out")
    assert record_of(finished)["split_held_out"] is True
    measured_on = values(finished, "held-out", "wdae-gnn", 1).bank_digest
    assert measured_on == bank.half_of_held_out("test").digest != bank.digest
    fit, test = (bank.half_of_held_out(half).select(Part.BASE_HELD_OUT).features for half in ("fit", "test"))
    assert len(fit) == len(test) == 16 * 3
    assert torch.cdist(fit, test).min() > 1e-3


def test_the_trainval_row_takes_epsilon_from_the_row_it_was_chosen_for(finished: Path) -> None:
    lent = json.loads((finished / "rows/whole/wdae-gnn/row.json").read_text())
    taken = json.loads((finished / "rows/trainval/wdae-gnn-trainval/row.json").read_text())
    assert taken["steps"] == lent["steps"]
    assert lent["step_origin"] == "validation classes" and taken["step_origin"] == "the row wdae-gnn"
    trainval = record_of(finished)["tables"][1]
    assert line(trainval, "initial-estimate", 1)["paper"] == {}


def test_the_page_and_the_plots_are_there(finished: Path) -> None:
    page = (finished / "results.md").read_text()
    assert "## Table 3" in page and "\n| wDAE-GNN | " in page and "Not run:" in page
    assert "wdae reproduce mini-imagenet --bank BANK" in page
    assert str(finished.parent) not in page
    names = {"accuracy-against-shots", "base-novel-trade-off", "gnn-gain-by-distance"}
    drawn = {path.name for path in (finished / "plots").iterdir()}
    assert drawn == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    curves = record_of(finished)["curves"]
    assert {(c["row"], c["n_shot"]) for c in curves["shots"]} >= {
        ("wdae-gnn", 1),
        ("wdae-gnn", 2),
        ("lwof", 5),
    }
    assert len(curves["classes"]) == 7


def _from_commit(run: Path, commit: str | None) -> None:
    """The same run, as if from another state of the checkout."""
    record = record_of(run)
    record["environment"]["commit"] = commit
    (run / "results.json").write_text(json.dumps(record))


def test_the_documents_take_the_record_over(finished: Path, make_results: ModuleType, tmp_path: Path) -> None:
    make_results.RESULTS = tmp_path / "kept"
    make_results.EARLIER = tmp_path / "kept" / "earlier"
    for commit, why in ((None, "no commit"), ("a1b2c3+", "with changes")):
        _from_commit(finished, commit)
        for words in (["adopt", str(finished)], ["extend", "mini-imagenet", str(finished)]):
            with pytest.raises(SystemExit, match=why):
                make_results.main(words)
    _from_commit(finished, "a1b2c3")
    make_results.main(["adopt", str(finished)])
    assert record_of(finished) == json.loads((tmp_path / "kept/mini-imagenet.json").read_text())
    whole = json.loads((tmp_path / "kept/mini-imagenet.json").read_text())
    less = copy.deepcopy(whole)
    for table in less["tables"]:
        table["rows"] = [entry for entry in table["rows"] if entry["row"] != "wdae-mlp"]
        table["pairs"] = [pair for pair in table["pairs"] if pair["over"] != "wDAE-MLP"]
    less["not_run"].append({"row": "wdae-mlp", "label": "wDAE-MLP", "why": "not asked for (--rows)"})
    (tmp_path / "kept/mini-imagenet.json").write_text(json.dumps(less | {"seconds": 0}))
    make_results.main(["extend", "mini-imagenet", str(finished)])
    extended = json.loads((tmp_path / "kept/mini-imagenet.json").read_text())
    times = [
        entry["training_seconds"] + entry["measuring_seconds"]
        for table, role in ((whole["tables"][0], "whole"), (whole["tables"][3], "held-out"))
        for entry in table["rows"]
        if entry["row"] == "wdae-mlp" and entry["n_shot"] == 1 and table["role"] == role
    ]
    assert extended.pop("seconds") == pytest.approx(sum(times))
    for table in (t for record in (extended, whole) for t in record["tables"]):
        table["pairs"].sort(key=lambda pair: (pair["label"], pair["over"], pair["n_shot"]))
    assert extended == {key: value for key, value in whole.items() if key != "seconds"}
    (tmp_path / "kept/mini-imagenet.json").write_text(json.dumps(whole | {"seed": 1}))
    with pytest.raises(SystemExit, match="differs from mini-imagenet in seed"):
        make_results.main(["extend", "mini-imagenet", str(finished)])
    other = copy.deepcopy(whole)
    other["tables"][-1]["reference"] = "lwof"
    (tmp_path / "kept/mini-imagenet.json").write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="not lwof; run that row there as well"):
        make_results.main(["extend", "mini-imagenet", str(finished)])
    make_results.main(["adopt", str(finished)])
    (tmp_path / "kept/mini-imagenet.md").write_text("Words of ours.")
    make_results.main(["write"])
    page = (tmp_path / "results.md").read_text()
    gnn = line(record_of(finished)["tables"][3], "wdae-gnn", 5)["metrics"]["all"]
    assert "## MiniImageNet\n\nWords of ours.\n" in page
    assert f"{100 * gnn['mean']:.2f} ± {100 * gnn['ci95']:.2f}" in page
    pages = page + (tmp_path / "speed.md").read_text()
    for path in (tmp_path / "images").iterdir():
        assert f"(images/{path.name})" in pages
    assert len(list((tmp_path / "images").glob("mini-imagenet-*.png"))) == 3


def test_finished_rows_are_not_run_again_and_new_ones_are_added(
    banks: Path, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("row.json")}
    words = [*named(banks), "--rows", f"{ROWS},wdae-mlp-no-noise"]
    assert wdae("reproduce", "mini-imagenet", "--resume", "-o", run, *words) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (run / "rows/whole/wdae-mlp-no-noise/row.json").is_file()
    old, new = record_of(finished)["tables"], record_of(run)["tables"]
    assert [entry for entry in new[0]["rows"] if entry["row"] != "wdae-mlp-no-noise"] == old[0]["rows"]
    assert new[1:] == old[1:]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--queries", 7], "queries was 6, is 7"),
        (["--stage2", "training.steps=7"], "recipe.training.steps was 6, is 7"),
        (["--seed", 1], "seed was"),
    ],
)
def test_other_settings_for_a_finished_row_are_refused(
    banks: Path, finished: Path, words: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "recipe.yaml").read_text()
    kept = [
        word for word in SMALL[SMALL.index("--stage2") + 1 :] if not str(word).startswith("training.steps")
    ]
    more = [*words, *kept] if words[0] == "--stage2" else words
    assert wdae("reproduce", "mini-imagenet", "--resume", "-o", finished, *named(banks), *more) == 2
    output = capsys.readouterr().err
    assert message in output and "other settings" in output and "remove" in output
    assert (finished / "recipe.yaml").read_text() == before


def test_what_a_run_opens_is_named_again(
    banks: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever made a run chose the paths and the code that its recipe names: nothing of it is followed."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(
        recipe.replace("stage1: []", "stage1: [start=/etc, 'backbone=os:system']")
    )
    words = ["reproduce", "mini-imagenet", "-o", run, "--resume"]
    assert wdae(*words, *named(banks)[2:]) == 2
    said = capsys.readouterr().err
    assert f"--bank {banks / 'whole'} --stage1 start=/etc backbone=os:system" in said
    assert "--held-out-bank" not in said
    assert wdae(*words, *named(banks), "--stage1", "epochs=1") == 0


def test_stage_1_runs_no_code_that_a_recipe_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text("stage1: ['backbone=os:system']\nallow_missing: true\n")
    words = ["--recipe", tmp_path / "recipe.yaml", "--data", tmp_path, "-o", tmp_path / "run"]
    assert wdae("reproduce", "mini-imagenet", *words) == 2
    assert "--trust os:system" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to reproduce MiniImageNet from"),
        (["--rows", "wdae-gn"], "did you mean 'wdae-gnn'"),
        (["--held-out-bank", "whole"], "no held-out pictures"),
        (["--trainval-bank", "whole"], "has validation classes"),
        (["--model", "somewhere"], "needs the pictures"),
        (["--bank", "whole", "--stage2", "training.steps"], "KEY=VALUE"),
        (["--bank", "whole", "--stage2", "training.stepz=3"], "did you mean 'training.steps'"),
    ],
)
def test_what_cannot_be_run_is_said(
    banks: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(banks / word) if word == "whole" else word for word in words]
    assert wdae("reproduce", "mini-imagenet", "-o", tmp_path / "run", *words) == 2
    assert message in capsys.readouterr().err


def test_without_a_bank_of_all_pictures_the_held_out_one_serves_and_the_page_says_so(
    banks: Path, tmp_path: Path
) -> None:
    words = ["--held-out-bank", banks / "held-out", "--rows", "wdae-mlp,wdae-mlp-trainval", *SMALL]
    assert wdae("reproduce", "mini-imagenet", *words, "-o", tmp_path / "run") == 0
    record, page = record_of(tmp_path / "run"), (tmp_path / "run/results.md").read_text()
    assert [(t["number"], t["role"]) for t in record["tables"]] == [(2, "held-out"), (3, "held-out")]
    assert "learned from the held-out pictures too" in page
    assert "train+val: Table 2: no --trainval-bank" in page
    assert line(record["tables"][0], "wdae-mlp", 1)["gains"].keys() >= {"novel", "base"}


def test_a_row_that_was_killed_goes_on_from_its_checkpoint(banks: Path, tmp_path: Path) -> None:
    words = ["reproduce", "mini-imagenet", "--bank", banks / "whole", "--rows", "wdae-mlp", *SMALL]
    words[words.index("training.steps=6")] = "training.steps=60"
    run, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "wdae.cli.main", *map(str, words), "-o", str(run)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    checkpoint = run / "rows/whole/wdae-mlp/checkpoint.safetensors"
    try:
        deadline = time.monotonic() + 120
        while not checkpoint.is_file() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    step = load_checkpoint(checkpoint).state["progress"]["step"]
    assert 0 < step < 60
    assert wdae(*words, "-o", run, "--resume") == 0
    assert wdae(*words, "-o", whole) == 0
    for n_shot in (1, 5):
        a, b = values(run, "whole", "wdae-mlp", n_shot), values(whole, "whole", "wdae-mlp", n_shot)
        assert np.array_equal(a.per_episode["novel"], b.per_episode["novel"])
    resumed = [json.loads(row) for row in (checkpoint.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in resumed] == list(range(3, 61, 3))


@pytest.mark.parametrize(
    ("benchmark", "asked"), [("mini-imagenet", "maml,tadam,shifted-neurons"), ("tiered-imagenet", "rivals")]
)
def test_systems_of_others_have_a_table_of_their_own(
    banks: Path, tmp_path: Path, benchmark: str, asked: str
) -> None:
    run = tmp_path / "run"
    words = ["--bank", banks / "whole", "--rows", asked, *SMALL, "training.shots=[1]"]
    assert wdae("reproduce", benchmark, *words, "--shots", 1, "-o", run) == 0
    (table,) = record_of(run)["tables"]
    rows = {line["row"]: line for line in table["rows"]}
    every = {row.name for row in BENCHMARKS[benchmark].rivals}
    wanted = every if asked == "rivals" else set(asked.split(","))
    assert rows.keys() == wanted | {"initial-estimate"} and len(every) >= 5
    for name in wanted:
        assert rows[name]["paper"]["novel"]["mean"] > 0.4 and rows[name]["gains"]["novel"]
    assert "paper: Conv-4-64" in (run / "results.md").read_text()


def test_several_seeds_share_features_and_episodes(
    banks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["--held-out-bank", banks / "held-out", "--rows", "lwof", *SMALL, "--seeds", 3, 4, "-o", run]
    assert wdae("reproduce", "mini-imagenet", *words) == 0
    rows = {(r["table"], r["row"], r["n_shot"]): r for r in json.loads((run / "seeds.json").read_text())}
    for n_shot in (1, 5):
        both = [values(run / f"seed-{s}", "held-out", "lwof", n_shot).per_episode["all"] for s in (3, 4)]
        found = rows[3, "lwof", n_shot]
        assert found["all"] == pytest.approx(np.mean([one.mean() for one in both]))
        assert found["all_spread"] == pytest.approx(np.std([one.mean() for one in both], ddof=1))
        assert rows[3, "initial-estimate", n_shot]["all_spread"] == 0  # the same episodes
    assert "over 2 seeds of stage 2 (3, 4)" in (run / "seeds.md").read_text()
    assert wdae("reproduce", "mini-imagenet", "--data", tmp_path, "--seeds", 1, 2, "-o", tmp_path / "x") == 2
    assert "--held-out-bank RUN/banks/held-out" in capsys.readouterr().err
