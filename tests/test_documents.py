"""The documents' figures come from records: the page is what the scripts make of them, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from headline_results import at_a_glance, order_section, over_seeds
from result_records import JOINED

from wdae import synthetic_bank
from wdae.cli.main import main
from wdae.comparison.table import ComparisonTable
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.runs.run import Run
from wdae.stage2.config import MetaRecipe

ROOT = Path(__file__).parents[1]
SMALL = [
    "--denoiser.hidden",
    "16",
    "--training.episodes_per_step",
    "4",
    "--training.n_fake",
    "5",
    "--training.base_queries",
    "10",
    "--training.validate_every",
    "1",
    "--training.validation_episodes",
    "20",
    "--evaluation.step_episodes",
    "20",
    "--device",
    "cpu",
]


def test_the_page_is_what_the_records_give(make_results: ModuleType) -> None:
    pytest.importorskip("matplotlib")
    readme = (ROOT / "README.md").read_text()
    ours = "| wDAE-GNN+ (ours), balanced | "
    make_results.README.write_text(readme.replace(ours, f"{ours}9"))
    assert make_results.README.read_text() != readme
    make_results.main(["write"])
    for page in ("results.md", "speed.md", "adding.md", "earlier.md", "tries.md"):
        assert make_results.PAGE.with_name(page).read_text() == (ROOT / "docs" / page).read_text()
    assert make_results.README.read_text() == readme
    drawn = {path.name for path in make_results.IMAGES.iterdir()}
    assert drawn <= {path.name for path in (ROOT / "docs" / "images").iterdir()}


def test_records_of_accuracies_are_of_clean_commits() -> None:
    """Those that are not stand apart, in results/earlier."""
    for path in (*(ROOT / "results").glob("*.json"), *(ROOT / "results" / "seeds").glob("*.json")):
        record = json.loads(path.read_text())
        for run in record.get("runs") or [record["environment"]]:
            assert re.fullmatch("[0-9a-f]{40}", run["commit"] or ""), path.name


def test_records_name_no_path_of_a_machine() -> None:
    records = [*(ROOT / "results").rglob("*.json"), *(ROOT / "benchmarks" / "results").rglob("*.json")]
    named = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in records
        if (
            found := re.search(
                r"\"(?:/|~|[A-Za-z]:\\)[^\"]*|/(?:root|home|tmp|Users)/[^\"]*", path.read_text()
            )
        )
    }
    assert len(records) > 50 and not named


def test_commits_of_records_are_in_the_history() -> None:
    """The commit of a record can be looked at, or the one that it was joined into."""
    known = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True
    )
    if known.returncode or shallow.stdout.strip() != "false":
        pytest.skip("there is no whole history of git here")
    history, named = set(known.stdout.split()), {}
    for folder in ("results", "benchmarks/results"):
        for path in sorted((ROOT / folder).rglob("*.json")):
            for name in re.findall('"commit": "([0-9a-f]{40})"', path.read_text()):
                named[name] = path.name
    assert len(named) > 5
    lost = {name: file for name, file in named.items() if JOINED.get(name, name) not in history}
    assert lost == {}
    assert named.keys() >= JOINED.keys()


def test_other_seeds_of_a_record_stand_beside_it() -> None:
    record = json.loads((ROOT / "results" / "resnet12-embedded.json").read_text())
    other = json.loads(json.dumps(record)) | {"seed": 1, "name": "seeds/resnet12-embedded-seed-1"}
    assert over_seeds(record, []) == []
    assert over_seeds(record | {"name": "has no other seed"}, [other]) == []
    for table in other["tables"]:
        table["rows"] = [line for line in table["rows"] if line["row"] != "lwof"]
        for line in table["rows"]:
            line["metrics"]["novel"]["mean"] += 0.02
    page = "\n".join(over_seeds(record, [other]))
    assert "± 1.41 |" in page and "2 seeds of stage 2 (0, 1)" in page
    assert "| wDAE-GNN, ε of the paper |" in page and "| LwoF |" not in page
    alone, beside = ("\n".join(order_section([record], seeds)) for seeds in ([], [other]))
    assert "over 2 seeds of stage 2" in beside and "seeds" not in alone


def test_a_row_at_a_glance_is_of_one_network() -> None:
    """With --quick table 2 has another network than table 3: their figures do not share a row."""
    record = json.loads((ROOT / "results" / "from-pictures-quick.json").read_text())
    means = {
        (table["role"], line["n_shot"]): f"{100 * line['metrics']['novel']['mean']:.2f}"
        for table in record["tables"]
        for line in table["rows"]
        if line["row"] == "initial-estimate" and table["number"] in (2, 3)
    }
    assert len({*means.values()}) == len(means) == 4
    page = at_a_glance([record], [])
    starts = [line for line in page if "| initial estimate |" in line and not line.startswith("| paper |")]
    first, second = starts
    assert "table 2 |" in first and all(means["whole", k] in first for k in (1, 5)) and first.endswith("|  |")
    assert "table 3 |" in second and all(means["held-out", k] in second for k in (1, 5))
    assert not [line for line in page if "network of table 2 |" in line and "balanced" in line]
    assert any("ε of the paper, over the initial estimate, network of table 2" in line for line in page)
    one = json.loads((ROOT / "results" / "from-pictures-single.json").read_text())
    assert "network of table" not in "\n".join(at_a_glance([one], []))


def test_figures_of_the_paper_beside_a_comparison_say_their_backbones(make_results: ModuleType) -> None:
    record = json.loads((ROOT / "results" / "compare-others.json").read_text())
    text = make_results._run_of(record, record["rows"][0])
    assert "WRN-28-10, train+val (activations, leo)" in text
    said = re.search(r"Conv-4-64 \(([^)]*)\)", text)
    started = {row["method"] for row in record["rows"] if row["info"].get("start_kept")}
    assert (
        said and {"r2d2", "relation"} <= {*said[1].split(", ")} and "maml" in started - {*said[1].split(", ")}
    )


def test_what_stage_1_reaches_stands_beside_the_most_it_could(make_results: ModuleType) -> None:
    lines = make_results.speed()
    for name in ("resnet12", "wrn-28-10"):
        reached = json.loads((make_results.BENCHMARKS / f"stage1-gpu-{name}.json").read_text())["training"][0]
        bounds = json.loads((make_results.BENCHMARKS / "stage1-roofline.json").read_text())["at_most"]
        most = next(row for row in bounds if row["backbone"] == name)
        (row,) = [line for line in lines if line.startswith(f"| {name}, ")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[3] == f"{100 * reached['share_of_peak']:.1f} %"
        assert cells[-1] == f"{100 * most['share_with_batch_norm_too']:.1f} %"


def test_every_benchmark_shows_its_figures(make_results: ModuleType) -> None:
    """Also those whose record is flat, of whole numbers alone."""
    for path in sorted(make_results.BENCHMARKS.glob("*.json")):
        lines = make_results.benchmark_section(path)[3:]
        assert any(line.startswith(("- ", "| ")) and re.search(r"\d", line) for line in lines), path.stem
    path = make_results.BENCHMARKS / "serve-restart.json"
    record = json.loads(path.read_text())
    wanted = {f"- {name}: {record[name]}" for name in ("restarts", "answered", "failed")}
    assert wanted <= set(make_results.benchmark_section(path))


def test_the_demos_table_is_put_by_its_generator(make_results: ModuleType, tmp_path: Path) -> None:
    facts = {"protocol": "few-way", "n_way": 5, "n_shot": 1, "seed": 0}
    scores = {metric: [0.5, 0.6, 0.7] for metric in ("novel", "base", "all", "harmonic", "area")}
    run = Run.create(tmp_path / "demo", MetaRecipe())
    for method in ("initial-estimate", "wdae-gnn"):
        Result.of(scores, method=method, **facts).save(run.results)
    make_results.RESULTS = tmp_path / "kept"
    _from_commit(run.path, "a1b2c3+")
    with pytest.raises(SystemExit, match="with changes"):
        make_results.main(["demo", str(run.path)])
    _from_commit(run.path, "a1b2c3")
    make_results.main(["demo", str(run.path)])
    make_results.put_demo()
    block = make_results.README.read_text().partition(make_results.DEMO[0])[2]
    assert "60.00" in block and "Gain over initial-estimate" in block
    assert block.splitlines()[3].split() == ["method", "shots", *scores]


def test_a_record_of_stage_1_names_what_it_came_from_by_digest(
    make_results: ModuleType, tmp_path: Path
) -> None:
    for name in ("start", "teacher", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    taught = {"teachers": [str(tmp_path / "teacher"), str(tmp_path / "gone")]}
    recipe = {"data": {"path": "/x"}, "start": str(tmp_path / "start"), "distillation": taught}
    (tmp_path / "model/model.json").write_text(json.dumps({"recipe": recipe, "figures": {}}))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "environment.json").write_text("{}")
    record = make_results.stage1_results.collect("x", tmp_path, tmp_path / "model", {}, "")
    wanted = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("start", "teacher", "model")}
    assert record["digests"] == {
        "weights": wanted["model"],
        "start": wanted["start"],
        "teachers": [wanted["teacher"], None],
    }
    assert record["recipe"]["start"] is True and record["recipe"]["data"] == {}


def _train(bank: Path, out: Path, kind: str, *, steps: int = 1, episodes: int = 40) -> Path:
    words = ["train", "--bank", f"{bank}", "-o", f"{out}", "--name", f"wdae-{kind}", "--denoiser.kind", kind]
    words += ["--evaluation.episodes", f"{episodes}", "--training.steps", f"{steps}", *SMALL]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code in (None, 0)
    _from_commit(out, "a1b2c3")
    return out


def _from_commit(run: Path, commit: str) -> None:
    """The same run, as if from another state of the checkout."""
    record = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(record | {"commit": commit}))


def test_some_rows_of_a_record_are_renewed(make_results: ModuleType, tmp_path: Path) -> None:
    synthetic_bank(16, 6, 6, 40, 24, held_out_per_class=15).save(tmp_path / "bank")
    gnn, mlp = (_train(tmp_path / "bank", tmp_path / f"wdae-{kind}", kind) for kind in ("gnn", "mlp"))
    make_results.RESULTS = tmp_path / "kept"
    _from_commit(mlp, "a1b2c3+")
    with pytest.raises(SystemExit, match="with changes"):
        make_results.main(["collect", "small", str(gnn), str(mlp)])
    _from_commit(mlp, "a1b2c3")
    make_results.main(["collect", "small", str(gnn), str(mlp)])

    def rows() -> dict[tuple[str, int], dict[str, object]]:
        kept = json.loads((tmp_path / "kept/small.json").read_text())["rows"]
        return {(row["method"], row["n_shot"]): row for row in kept}

    before = rows()
    assert {name for name, _ in before} == {"initial-estimate", "wdae-gnn", "wdae-mlp"}
    gain = before["wdae-gnn", 1]["gains"]["novel"]["mean"]  # type: ignore[index]
    found = {(r.method, r.n_shot): r.metrics["novel"].mean for r in ResultTable.load(Run.open(gnn).results)}
    assert gain == pytest.approx(found["wdae-gnn", 1] - found["initial-estimate", 1], abs=1e-6)

    again = _train(tmp_path / "bank", tmp_path / "again" / "wdae-mlp", "mlp", steps=2)
    make_results.main(["renew", "small", str(again)])
    after = rows()
    assert {key for key in after if after[key] != before[key]} == {("wdae-mlp", 1), ("wdae-mlp", 5)}
    runs = json.loads((tmp_path / "kept/small.json").read_text())["runs"]
    assert sorted(run["run"] for run in runs) == ["wdae-gnn", "wdae-mlp"]

    fewer = _train(tmp_path / "bank", tmp_path / "fewer" / "wdae-mlp", "mlp", episodes=30)
    with pytest.raises(SystemExit, match="other episodes than small"):
        make_results.main(["renew", "small", str(fewer)])
    assert rows() == after


def test_rows_that_stand_as_they_started_are_marked_wherever_they_stand() -> None:
    """In the page, as generated, and in the table that wdae compare prints and writes."""
    record = json.loads((ROOT / "results" / "earlier" / "compare-embedded.json").read_text())
    page = (ROOT / "docs" / "earlier.md").read_text()
    started: dict[str, list[int]] = {}
    for row in record["rows"]:
        started.setdefault(row["method"], []).extend([row["n_shot"]] * bool(row["info"].get("start_kept")))
    assert any(started.values()) and not all(started.values())
    section = page.split("## compare-embedded")[1].split("\n## ")[0]
    marks = {(): "", (1,): " † (1-shot)", (5,): " † (5-shot)", (1, 5): " †"}
    for method, shots in started.items():
        name = f"| {method}{marks[tuple(shots)]}"
        rows = [line for line in section.splitlines() if line.startswith((f"{name} |", f"{name} (trans"))]
        assert rows, (method, shots)
    assert "† stands as it started" in section
    facts = {"protocol": "few-way", "n_way": 5, "n_shot": 1, "seed": 0}
    results = [
        Result.of({"novel": [0.5, 0.7]}, method="initial-estimate", **facts),
        Result.of({"novel": [0.5, 0.7]}, method="leo", info={"start_kept": True}, **facts),
    ]
    table = ResultTable(tuple(results))
    for text in (table.markdown(), ComparisonTable(table, "initial-estimate").markdown()):
        assert "leo † |" in text and "initial-estimate |" in text
