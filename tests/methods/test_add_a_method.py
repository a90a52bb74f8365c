"""The example of docs/add-a-method.md runs as it stands, and passes the shared checks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from method_checks import CHECKS

from wdae.evaluation.protocol import few_way
from wdae.methods import make
from wdae.methods.registry import METHODS
from wdae.synthetic import synthetic_bank

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
NAME = "gained-mean"


@pytest.fixture
def example() -> Iterator[str]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    yield code
    METHODS.pop(NAME, None)


def test_the_example_runs_and_passes_the_checks(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.strip().splitlines()) < 40
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert "±" in capsys.readouterr().out
    for check, concerns in CHECKS.items():
        if concerns(NAME):
            check(NAME)


def test_methods_of_an_installed_package_are_found_and_their_runs_open(tmp_path: Path, example: str) -> None:
    """A package with an entry point, installed as pip would: its method trains, is saved and opens again."""
    site = tmp_path / "site"
    found = site / "theirs-1.0.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (found / "entry_points.txt").write_text(
        "[wdae.methods]\ngained-mean = theirs:GainedMean\nbroken = not_there:Nothing\n"
    )
    (site / "theirs.py").write_text(re.split(r"\nbank = ", example)[0].replace("@register\n", ""))
    synthetic_bank(12, 4, 5, 16, 8, held_out_per_class=3).save(tmp_path / "bank")

    def wdae(*words: str) -> str:
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-m", "wdae.cli.main", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    listed = wdae("methods")
    assert NAME in listed and "'broken' of an installed package is left out" in listed
    steps = ("--training.steps", "3", "--training.validation-episodes", "10", "--training.n-fake", "4")
    episodes = ("--evaluation.episodes", "10", "--evaluation.queries", "3", "--device", "cpu")
    wdae("train", "--bank", "bank", "--method", NAME, *steps, *episodes, "-o", "run")
    measured = wdae("evaluate", "run", "--bank", "bank", "--episodes", "10", "--queries", "3")
    assert NAME in measured, measured


def test_statistics_of_base_images_are_taken_on_each_bank() -> None:
    method = make("lda")
    for seed in (0, 1):
        bank = synthetic_bank(16, 4, 6, 24, 8, seed=seed, held_out_per_class=6)
        result = few_way(method, bank, n_shot=1, n_episodes=50)
        assert result.metrics["novel"].mean > 0.3 and result.metrics["base"].mean > 0.3
    assert not method.means.numel()  # type: ignore[attr-defined]  # the method given stays as it was
