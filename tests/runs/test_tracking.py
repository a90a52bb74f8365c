"""What runs log reaches TensorBoard and MLflow, by their own readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.errors import RunError
from wdae.runs.run import Run
from wdae.runs.tracking import TRACKERS, tracking
from wdae.stage2.config import MetaRecipe


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
    for step in (1, 2):
        with tracking(["mlflow"]):
            Run.resume(run.path).log(step=step, validation=step / 4)
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("wdae").experiment_id])
    assert len(found) == 1 and found[0].info.run_name == "run" and found[0].info.status == "FINISHED"
    assert found[0].data.params["name"] == "mine" and "training.noise" in found[0].data.params
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

        def close(self) -> None:
            seen.append("closed")

    monkeypatch.setitem(TRACKERS, "mine", lambda run, keys, started: Mine())
    with tracking(["mine"]):
        Run.create(tmp_path / "run", MetaRecipe()).log(step=1, loss=2)
    assert seen == [(1, {"loss": 2.0}), "closed"]
