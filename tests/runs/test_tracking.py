"""What runs log reaches TensorBoard and MLflow, by their own readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.errors import RunError
from wdae.runs.run import Run
from wdae.runs.tracking import TRACKERS, tracking
from wdae.stage2.config import MetaRecipe


def _log_and_raise(trackers: list[str], runs: list[Run], error: BaseException) -> None:
    with tracking(trackers):
        for run in runs:
            run.log(step=1, loss=1.0)
        raise error


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Run.create(tmp_path / "run", MetaRecipe())
    with tracking(["tensorboard"]):
        for step in (1, 2):
            run.log(step=step, loss=1 / step, learned=True, note="words", gone=float("nan"))
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5)]
    run.log(step=3, loss=0.25)  # nothing tracks any more
    events.Reload()
    assert len(events.Scalars("loss")) == 2 and len(run.metrics()) == 3


def test_mlflow_has_recipe_and_metrics_and_goes_on_where_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    run = Run.create(tmp_path / "run", MetaRecipe(name="mine"))
    client = mlflow.MlflowClient()
    for step in (1, 2):
        with tracking(["mlflow"]):
            Run.resume(run.path).log(step=step, validation=step / 4)
            (own,) = client.search_runs([client.get_experiment_by_name("wdae").experiment_id])
            assert own.info.status == "RUNNING"
    found = client.search_runs([client.get_experiment_by_name("wdae").experiment_id])
    assert len(found) == 1 and found[0].info.run_name == "run" and found[0].info.status == "FINISHED"
    assert found[0].data.params["name"] == "mine" and "training.noise" in found[0].data.params
    for error, status in ((RunError("no"), "FAILED"), (KeyboardInterrupt(), "KILLED")):
        with pytest.raises(type(error)):
            _log_and_raise(["mlflow"], [Run.resume(run.path)], error)
        assert client.get_run(found[0].info.run_id).info.status == status
    history = client.get_metric_history(found[0].info.run_id, "validation")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]


def test_what_is_not_there_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match="did you mean 'mlflow'"), tracking(["mlfow"]):
        pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["demo", "-o", str(tmp_path / "run"), "--track", "tensorboard"]
    assert run_app(root(), words) == 2
    assert "pip install 'wdae[track]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_tracker_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    class Mine:
        def log(self, step: int, figures: object) -> None:
            seen.append((step, figures))

        def close(self, ending: str) -> None:
            seen.append(ending)

    monkeypatch.setitem(TRACKERS, "mine", lambda run, keys, started: Mine())
    with tracking(["mine"]):
        Run.create(tmp_path / "run", MetaRecipe()).log(step=1, loss=2)
    assert seen == [(1, {"loss": 2.0}), "finished"]


class Frail:
    """A tracker of the run folder that it is made for, of which one act fails."""

    seen: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, run: Path, fails: tuple[str, ...] = ()) -> None:
        self.run, self.fails = run.name, fails
        self._act("begin")

    def _act(self, what: str) -> None:
        if what in self.fails:
            raise OSError("the server is away")
        self.seen.append((self.run, what))

    def log(self, step: int, figures: object) -> None:
        self._act(f"log {step}")

    def close(self, ending: str) -> None:
        self._act("close")
        self.seen[-1] = (self.run, ending)


@pytest.fixture
def frail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str]]]:
    """Track with ``frail``, which fails as told for each run, and beside it with ``sound``; what was done."""

    def put(**fails: tuple[str, ...]) -> list[tuple[str, str]]:
        monkeypatch.setattr(Frail, "seen", [])
        monkeypatch.setitem(TRACKERS, "frail", lambda run, *_: Frail(run, fails.get(run.name, ())))
        monkeypatch.setitem(TRACKERS, "sound", lambda run, *_: Frail(run))
        return Frail.seen

    return put


def runs_of(folder: Path, *names: str) -> list[Run]:
    return [Run.create(folder / name, MetaRecipe()) for name in names]


def test_a_tracker_that_cannot_log_or_close_is_left_with_a_warning(
    frail: Callable[..., list[tuple[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = runs_of(tmp_path, "a", "b")
    seen = frail(a=("log 2",), b=("close",))
    with tracking(["frail", "sound"]):
        for run in (a, b):
            for step in (1, 2, 3):
                run.log(step=step, loss=1.0)
    said = capsys.readouterr().err
    assert said.count("the server is away; metrics.jsonl has everything") == 2
    assert "a is tracked no longer" in said and "the tracking of" in said
    wanted = {
        ("a", "begin"): 2,
        ("a", "log 1"): 2,
        ("a", "log 2"): 1,
        ("a", "log 3"): 1,
        ("a", "finished"): 1,
    }
    wanted |= {("b", "log 3"): 2, ("b", "finished"): 1}  # the other tracker is closed all the same
    assert {key: seen.count(key) for key in wanted} == wanted
    assert [len(run.metrics()) for run in (a, b)] == [3, 3]


def test_a_tracker_that_cannot_begin_ends_the_first_run_alone(
    frail: Callable[..., list[tuple[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = runs_of(tmp_path, "a", "b")
    seen = frail(a=("begin",))
    with pytest.raises(RunError, match="--track frail does not work here"), tracking(["sound", "frail"]):
        a.log(step=1, loss=1.0)
    assert seen == [("a", "begin"), ("a", "failed")]  # what was made before it is closed

    seen = frail(b=("begin",))
    with tracking(["frail", "sound"]):
        a.log(step=1, loss=1.0)
        b.log(step=1, loss=1.0)
    assert "is not tracked by frail: the server is away" in capsys.readouterr().err
    assert seen.count(("b", "log 1")) == 1 and seen.count(("a", "finished")) == 2


@pytest.mark.parametrize(
    ("error", "ending"), [(RunError("no"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_the_run_that_an_error_ended_says_so(
    error: BaseException,
    ending: str,
    frail: Callable[..., list[tuple[str, str]]],
    tmp_path: Path,
) -> None:
    seen = frail()
    with pytest.raises(type(error)):
        _log_and_raise(["sound"], runs_of(tmp_path, "a", "b"), error)
    assert seen[-2:] == [("a", "finished"), ("b", ending)]
