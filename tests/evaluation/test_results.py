import csv
import io
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_mutations import seal

from wdae.errors import StorageError, WdaeError
from wdae.evaluation.results import Estimate, Result, paired
from wdae.evaluation.table import ResultTable


def result(method: str = "wdae-gnn", shift: float = 0.0, n: int = 50, **changes: object) -> Result:
    values = np.random.default_rng(0).uniform(0.3, 0.7, n)
    settings = {
        "protocol": "few-way",
        "n_way": 5,
        "n_shot": 1,
        "seed": 3,
        "n_query": 15,
        "bank": "b",
        **changes,
    }
    rows = {"novel": values + shift, "all_prior": values / 2, "novel_top5": values + 0.1}
    return Result.of(rows, method=method, **settings)  # type: ignore[arg-type]


def test_estimate_is_the_textbook_interval() -> None:
    values = [0.2, 0.5, 0.9, 0.4, 0.35]
    estimate = Estimate.of(values)
    assert estimate.mean == pytest.approx(statistics.mean(values), abs=1e-15)
    assert estimate.ci95 == pytest.approx(1.96 * statistics.stdev(values) / math.sqrt(5), abs=1e-15)
    assert estimate.n == 5


def test_estimate_of_many_float32_values_keeps_precision() -> None:
    assert Estimate.of(np.full(2_000_000, 0.1, dtype=np.float32)).mean == pytest.approx(
        np.float32(0.1), abs=1e-9
    )


def test_one_episode_has_no_interval() -> None:
    estimate = Estimate.of([0.5])
    assert math.isnan(estimate.ci95)
    assert str(estimate) == "50.00"
    assert not estimate.excludes_zero
    with pytest.raises(WdaeError, match="at least 1"):
        Estimate.of([])


def test_paired_interval_is_that_of_the_differences() -> None:
    a, b = result(shift=0.02), result("initial")
    noise = np.random.default_rng(1).normal(0, 0.01, 50).astype(np.float32)
    a = Result.of({"novel": a.per_episode["novel"] + noise}, method="a", **_settings(a))
    gain = paired(a, b, "novel")
    differences = [
        float(x) - float(y) for x, y in zip(a.per_episode["novel"], b.per_episode["novel"], strict=True)
    ]
    assert gain.mean == pytest.approx(statistics.mean(differences), abs=1e-12)
    assert gain.ci95 == pytest.approx(1.96 * statistics.stdev(differences) / math.sqrt(50), abs=1e-12)
    assert gain.excludes_zero
    assert gain.ci95 < a.metrics["novel"].ci95 / 5  # what pairing is for
    assert gain.percent(signed=True).startswith("+")


def _settings(like: Result) -> dict[str, Any]:
    return {key: value for key, value in like.episodes.items() if key not in ("n_episodes", "part")}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"n_shot": 5},
        {"n_way": 6},
        {"protocol": "all-way"},
        {"n_query": 6},
        {"bank": "c"},
        {"bank_digest": "another"},
        {"n": 49},
        {"info": {"part": "validation"}},
    ],
)
def test_other_episodes_cannot_be_paired(change: dict[str, Any]) -> None:
    with pytest.raises(WdaeError, match="not measured on the same episodes"):
        paired(result(), result("initial", **change), "novel")


def test_a_metric_that_was_not_measured_cannot_be_paired() -> None:
    with pytest.raises(WdaeError, match="'novl'; did you mean 'novel'"):
        paired(result(), result("initial"), "novl")


def test_tensors_are_taken_as_they_come() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.25, 0.75], dtype=torch.float64, requires_grad=True)
    made = Result.of({"novel": values}, method="m", protocol="p", n_way=5, n_shot=1, seed=0)
    assert made.per_episode["novel"].dtype == np.float32
    assert made.metrics["novel"].mean == 0.5


def test_unequal_or_ill_shaped_values_are_refused() -> None:
    with pytest.raises(WdaeError, match="equally many"):
        Result.of({"a": [1.0], "b": [1.0, 2.0]}, method="m", protocol="p", n_way=5, n_shot=1, seed=0)
    with pytest.raises(WdaeError, match="shape"):
        Result.of({"a": [[1.0]]}, method="m", protocol="p", n_way=5, n_shot=1, seed=0)


def test_save_and_load_are_exact(tmp_path: Path) -> None:
    saved = result(n_shot=5, bank=None)
    path = saved.save(tmp_path)
    loaded = Result.load(path)
    assert loaded.to_dict() == saved.to_dict()
    assert list(loaded.per_episode) == list(saved.per_episode)
    for name, row in saved.per_episode.items():
        np.testing.assert_array_equal(loaded.per_episode[name], row)
    single = result(n=1)
    assert math.isnan(Result.load(single.save(tmp_path)).metrics["novel"].ci95)


def test_the_file_follows_the_documented_schema(tmp_path: Path) -> None:
    data = json.loads(result(bank_digest="abc").save(tmp_path).read_text())
    assert list(data) == [
        "format",
        "version",
        "method",
        "protocol",
        "n_way",
        "n_shot",
        "n_query",
        "seed",
        "n_episodes",
        "bank",
        "bank_digest",
        "metrics",
        "info",
        "values",
        "sha256",
    ]
    assert set(data["metrics"]["novel"]) == {"mean", "ci95", "n"}
    assert 0 < data["metrics"]["novel"]["mean"] < 1


def test_altered_files_are_refused(tmp_path: Path) -> None:
    path = result().save(tmp_path)
    values = path.with_suffix(".safetensors")
    whole, text = values.read_bytes(), path.read_text()
    values.write_bytes(whole[:-10])
    with pytest.raises(StorageError, match="truncated or altered"):
        Result.load(path)
    values.unlink()
    with pytest.raises(StorageError, match="is missing"):
        Result.load(path)
    values.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StorageError, match="checksum does not match"):
        Result.load(path)
    values.write_bytes(whole)
    path.write_text(text.replace('"n_episodes": 50', '"n_episodes": 51'))
    with pytest.raises(StorageError, match="checksum does not match"):
        Result.load(path)
    forged = json.loads(path.read_text())
    path.write_text(json.dumps(seal(forged)))
    with pytest.raises(StorageError, match="does not belong"):
        Result.load(path)
    for key in ("values", "sha256"):
        path.write_text(json.dumps({k: v for k, v in json.loads(text).items() if k != key}))
        with pytest.raises(StorageError, match=f"'{key}' is missing"):
            Result.load(path)
    path.write_text(text.replace('"version": 2', '"version": 3'))
    with pytest.raises(StorageError, match="result format 3, newer than 2"):
        Result.load(path)
    path.write_text(text.replace('"method"', '"methid"'))
    with pytest.raises(StorageError, match="'method' is missing"):
        Result.load(path)
    path.write_text("[]")
    with pytest.raises(StorageError, match="no result file"):
        Result.load(path)


def test_tables_in_every_form() -> None:
    table = ResultTable((result("initial"), result("wdae-gnn", 0.02)))
    assert table.metrics == ["novel", "all_prior", "novel_top5"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(rows) == 6
    assert float(rows[0]["mean"]) == table.results[0].metrics["novel"].mean
    assert [entry["method"] for entry in json.loads(table.json())] == ["initial", "wdae-gnn"]
    lines = table.markdown().splitlines()
    assert lines[0].startswith("5-way accuracy, %")
    assert lines[2] == "| method | shots | novel | novel, top 5 |"
    assert str(table.results[1].metrics["novel"]) in lines[5]


def test_the_terminal_table_shows_percent() -> None:
    from rich.console import Console

    console = Console(width=160, record=True, file=io.StringIO())
    table = ResultTable((result("initial"),))
    console.print(table.rich())
    text = console.export_text()
    assert f"{100 * table.results[0].metrics['novel'].mean:.2f} ±" in text
    assert "novel, top 5" in text


def test_a_folder_of_results_is_a_table(tmp_path: Path) -> None:
    table = ResultTable(tuple(result(m, n_shot=k) for k in (5, 1) for m in ("wdae-gnn", "initial")))
    table.save(tmp_path)
    (tmp_path / "timing.json").write_text('{"seconds": 3}')
    loaded = ResultTable.load(tmp_path)
    assert [(r.n_shot, r.method) for r in loaded] == [
        (1, "initial"),
        (1, "wdae-gnn"),
        (5, "initial"),
        (5, "wdae-gnn"),
    ]
    with pytest.raises(WdaeError, match="same file"):
        ResultTable((result(), result())).save(tmp_path)


def test_a_truncated_result_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    path = result().save(tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(StorageError, match="truncated"):
        ResultTable.load(tmp_path)


def test_gains_are_taken_over_the_baseline_on_the_same_episodes_only() -> None:
    table = ResultTable(
        (
            result("initial"),
            result("wdae-gnn", 0.02),
            result("wdae-gnn", 0.5, seed=9),
            result("wdae-mlp", 0.01),
        )
    )
    gains = table.gains("initial", "novel")
    assert [r.method for r, _ in gains] == ["wdae-gnn", "wdae-mlp"]
    assert gains[0][1].mean == pytest.approx(0.02, abs=1e-6)


def test_names_are_safe_for_files() -> None:
    assert re.fullmatch(r"wDAE-0\.3-x-[0-9a-f]{6}-few-way-5way-1shot-seed3", result("wDAE (ε=0.3)/x").name)
    assert result("wdae-gnn+").name == "wdae-gnn+-few-way-5way-1shot-seed3"
    alike = ["noise", "noise+", "noise-", "noise ", "noise_", "noise?"]
    assert len({result(name).name for name in alike}) == len(alike)
    assert result("m", info={"part": "validation"}).name == "m-few-way-5way-1shot-seed3-validation"


def test_results_need_no_torch() -> None:
    code = (
        "import sys, importlib.util\n"
        "from wdae.evaluation import results, table, plots\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
