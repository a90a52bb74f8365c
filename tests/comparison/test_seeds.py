"""``wdae compare --seeds``: the same episodes for all seeds of training, mean and spread over them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from command_line import wdae

from wdae.evaluation.table import ResultTable
from wdae.synthetic import synthetic_bank


def test_seeds_train_anew_on_the_same_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic_bank(24, 6, 6, 30, 12, seed=0, held_out_per_class=6).save(tmp_path / "bank")
    words = ["compare", "--bank", tmp_path / "bank", "--methods", "lwof-average,wdae-mlp", "--shots", 1]
    words += ["--episodes", 30, "--steps", 4, "--validations", 2, "--validation-episodes", 20, "--queries", 5]
    words += ["--device", "cpu", "--seeds", 3, 4, "-o", tmp_path / "run"]
    assert wdae(*words) == 0
    assert "mean ± standard deviation over 2 seeds" in " ".join(capsys.readouterr().out.split())
    folders = [tmp_path / "run" / f"seed-{seed}" / "results" for seed in (3, 4)]
    one, two = ({r.method: r for r in ResultTable.load(folder)} for folder in folders)
    assert {r.seed for r in (*one.values(), *two.values())} == {one["wdae-mlp"].seed}
    start = [table["initial-estimate"].per_episode["novel"].tolist() for table in (one, two)]
    assert start[0] == start[1]  # the same episodes
    assert one["wdae-mlp"].per_episode["all"].tolist() != two["wdae-mlp"].per_episode["all"].tolist()
    records = {r["method"]: r for r in json.loads((tmp_path / "run" / "seeds.json").read_text())}
    means = [table["wdae-mlp"].metrics["all"].mean for table in (one, two)]
    assert records["wdae-mlp"]["all"] == pytest.approx(statistics.fmean(means))
    assert records["wdae-mlp"]["all_spread"] == pytest.approx(statistics.stdev(means))
    assert records["initial-estimate"]["novel_spread"] == 0
