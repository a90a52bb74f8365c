"""Metrics of runs in TensorBoard and MLflow too, as they are logged: ``wdae COMMAND --track tensorboard``.

:meth:`wdae.runs.run.Run.log` hands each line on; ``metrics.jsonl`` stays what everything else reads. A
tracker is made at a run's first line and is anything with a ``log(step, figures)`` and a ``close(ending)``;
another one is a function in ``TRACKERS``. One that cannot be made for a command's first run ends the command;
whatever fails later is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from wdae.errors import MissingExtraError, RunError, nearest
from wdae.printing import warn

Figures = Mapping[str, float]
Ending = Literal["finished", "failed", "interrupted"]


class Tracker(Protocol):
    """Takes the figures of one run, a step at a time."""

    def log(self, step: int, figures: Figures) -> None:
        """The figures of a step."""

    def close(self, ending: Ending) -> None:
        """No more will come; how the run ended."""


class _TensorBoard:
    """Event files in the run's folder ``tensorboard``: ``tensorboard --logdir runs`` shows all runs."""

    def __init__(self, run: Path, keys: Mapping[str, Any], started: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))
        text = "\n".join(f"- {key}: {value}" for key, value in keys.items())
        self._writer.add_text("recipe", text)

    def log(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        self._writer.close()


class _MLflow:
    """A run of the experiment "wdae" where MLFLOW_TRACKING_URI says; one that is resumed goes on there."""

    def __init__(self, run: Path, keys: Mapping[str, Any], started: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        found = self._client.get_experiment_by_name("wdae")
        experiment = found.experiment_id if found else self._client.create_experiment("wdae")
        tags = {"wdae.run": str(run.resolve()), "wdae.started": started}
        same = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items() if "'" not in value)
        before = self._client.search_runs([experiment], same, max_results=1)
        own = before[0] if before else self._client.create_run(experiment, tags=tags, run_name=run.name)
        self._id = own.info.run_id
        if before:
            self._client.update_run(self._id, "RUNNING")
        params = [Param(key, str(value)[:500]) for key, value in keys.items()] if not before else []
        for first in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[first : first + 100])

    def log(self, step: int, figures: Figures) -> None:
        import time

        now = int(1000 * time.time())
        rows = [self._metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=rows)

    def close(self, ending: Ending) -> None:
        words = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
        self._client.set_terminated(self._id, words[ending])


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], str], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
}
"""Called with a run's folder, the keys of its recipe by dotted name, and when it was begun."""


@dataclass
class _Tracking:
    names: tuple[str, ...]
    open: dict[Path, list[Tracker]] = field(default_factory=dict)
    last: Path | None = None  # the run that logged last

    def close(self, ending: Ending) -> None:
        """Close all; the run that logged last ended so, those before it had finished."""
        for run, trackers in self.open.items():
            for tracker in trackers:
                try:
                    tracker.close(ending if run == self.last else "finished")
                except Exception as error:  # a server that is away must not spoil what is done
                    warn(f"the tracking of {run} was not closed: {error}; metrics.jsonl has everything")


_now: ContextVar[_Tracking | None] = ContextVar("tracking", default=None)


@contextmanager
def tracking(names: Sequence[str]) -> Iterator[None]:
    """Hand what runs log to these trackers while the body works; refused at once where one is not there.

    >>> with tracking(["tensorbord"]):
    ...     pass
    Traceback (most recent call last):
    ...
    wdae.errors.RunError: nothing to track with is called 'tensorbord'; did you mean 'tensorboard'?
    """
    for name in names:
        if name not in TRACKERS:
            raise RunError(f"nothing to track with is called {name!r}{nearest(name, TRACKERS)}")
        _find(name)
    held = _Tracking(tuple(names))
    token = _now.set(held if names else None)
    ending: Ending = "failed"
    try:
        yield
        ending = "finished"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    finally:
        _now.reset(token)
        held.close(ending)


def track(run: Path, line: Mapping[str, Any], begin: Callable[[], tuple[Mapping[str, Any], str]]) -> None:
    """Hand a line of metrics on; ``begin`` gives the recipe's keys and when the run was begun."""
    held, step = _now.get(), line.get("step")
    if held is None or not isinstance(step, int):
        return
    held.last = run
    if run not in held.open:
        _open(held, run, *begin())
    figures = {
        key: float(value)
        for key, value in line.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
    for tracker in tuple(held.open[run]):
        try:
            tracker.log(step, figures)
        except Exception as error:  # a server that is away must not end a training of hours
            held.open[run].remove(tracker)
            warn(f"{run} is tracked no longer: {error}; metrics.jsonl has everything")


def _open(held: _Tracking, run: Path, keys: Mapping[str, Any], started: str) -> None:
    """Make a run's trackers; what fails ends the command at its first run, and is a warning at others."""
    first = not held.open
    made = held.open.setdefault(run, [])
    for name in held.names:
        try:
            made.append(TRACKERS[name](run, keys, started))
        except Exception as error:  # of code and servers of others
            if first:
                raise RunError(f"--track {name} does not work here: {error}") from error
            warn(f"{run} is not tracked by {name}: {error}; metrics.jsonl has everything")


def _find(name: str) -> None:
    from importlib.util import find_spec

    if name in ("tensorboard", "mlflow") and find_spec(name) is None:
        raise MissingExtraError(name, "track", f"--track {name}")
