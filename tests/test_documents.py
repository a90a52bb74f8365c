"""The documents' figures come from records: the page is what the scripts make of them, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from wdae import synthetic_bank
from wdae.cli.main import main
from wdae.evaluation.table import ResultTable
from wdae.runs.run import Run

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
    make_results.README.write_text(readme.replace("| wDAE-GNN+ (ours) | ", "| wDAE-GNN+ (ours) | 9"))
    assert make_results.README.read_text() != readme
    make_results.main(["write"])
    for page in ("results.md", "tries.md"):
        assert make_results.PAGE.with_name(page).read_text() == (ROOT / "docs" / page).read_text()
    assert make_results.README.read_text() == readme
    drawn = {path.name for path in make_results.IMAGES.iterdir()}
    assert drawn <= {path.name for path in (ROOT / "docs" / "images").iterdir()}


def _train(bank: Path, out: Path, kind: str, *, steps: int = 1, episodes: int = 40) -> Path:
    words = ["train", "--bank", f"{bank}", "-o", f"{out}", "--name", f"wdae-{kind}", "--denoiser.kind", kind]
    words += ["--evaluation.episodes", f"{episodes}", "--training.steps", f"{steps}", *SMALL]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code in (None, 0)
    return out


def test_some_rows_of_a_record_are_renewed(make_results: ModuleType, tmp_path: Path) -> None:
    synthetic_bank(16, 6, 6, 40, 24, held_out_per_class=15).save(tmp_path / "bank")
    gnn, mlp = (_train(tmp_path / "bank", tmp_path / f"wdae-{kind}", kind) for kind in ("gnn", "mlp"))
    make_results.RESULTS = tmp_path / "kept"
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
