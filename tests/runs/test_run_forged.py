"""Runs of strangers: links, devices, ill-formed records; and two writers of one run."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from wdae.config import Config
from wdae.errors import StorageError
from wdae.runs.interrupt import as_interrupts, held_interrupts
from wdae.runs.run import Run, exclusively


class Recipe(Config):
    seed: int = 0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", Recipe())


@pytest.mark.parametrize("name", ["results", "metrics.jsonl", "results/x.json", "plots/deep"])
def test_a_run_with_a_link_is_not_opened(run: Run, tmp_path: Path, name: str) -> None:
    path = run.path / name
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(StorageError, match="is a link"):
        Run.open(run.path)


def test_a_run_with_a_pipe_is_not_opened(run: Run) -> None:
    os.mkfifo(run.path / "results" / "x.json")
    with pytest.raises(StorageError, match="not a regular file"):
        Run.open(run.path)


@pytest.mark.parametrize("value", [[], None, {"seed": "0"}, {"wdae": 1}, {"cores": True, "more": 1}])
def test_ill_formed_environments(run: Run, value: Any) -> None:
    (run.path / "environment.json").write_text(json.dumps(value))
    with pytest.raises(StorageError, match=r"environment\.json is altered"):
        run.environment()


@pytest.mark.parametrize(
    "line", ["[]", "1", '{"step": "1"}', '{"step": NaN}', "[" * 10_000, '{"a": 1, "a": 2}']
)
def test_ill_formed_metrics(run: Run, line: str) -> None:
    (run.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(StorageError, match="line 1"):
        run.metrics()


def test_a_line_without_end(run: Run) -> None:
    (run.path / "metrics.jsonl").write_text("1" * (2**20 + 1))
    with pytest.raises(StorageError, match="longer than"):
        run.metrics()


def test_a_run_is_held_while_a_function_works_on_it(run: Run) -> None:
    @exclusively
    def work(run: Run) -> str:
        with pytest.raises(StorageError, match="another process is changing"):
            Run.resume(run.path)
        with pytest.raises(StorageError, match="another process is changing"):
            Run.create(run.path, Recipe(seed=1), force=True)
        return "done"

    assert work(run) == "done"
    assert Run.resume(run.path).recipe(Recipe).seed == 0
    assert Run.create(run.path, Recipe(seed=1), force=True).recipe(Recipe).seed == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_wait_for_the_end_of_a_step(number: signal.Signals) -> None:
    with as_interrupts(), held_interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
