"""A run: one folder with everything one command produced.

::

    recipe.yaml        the recipe as it was resolved, every key written out
    environment.json   versions, commit, machine, seed, command, times
    metrics.jsonl      one JSON object a line, appended while the command works
    results/           result files (JSON, with per-episode values beside them)
    plots/             PNG and SVG
    report.html        everything above on one page

A folder is made whole or not at all, and is never written over unless asked to.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from wdae.errors import RunError, StorageError
from wdae.runs.environment import environment
from wdae.runs.tracking import track
from wdae.storage.files import (
    append_text,
    atomic_folder,
    make_folder,
    open_regular,
    refuse_links,
    write_bytes,
    write_text,
)
from wdae.storage.lock import NAME as LOCK
from wdae.storage.lock import alone
from wdae.storage.records import Record, Text, parse, read_record, write_json

if TYPE_CHECKING:
    from wdae.config import Config

    T = TypeVar("T", bound=Config)

P = ParamSpec("P")
V = TypeVar("V")

RECIPE, ENVIRONMENT, METRICS, REPORT = "recipe.yaml", "environment.json", "metrics.jsonl", "report.html"
_LONGEST_LINE = 2**20


class Environment(Record):
    """What ``environment.json`` holds."""

    wdae: Text
    commit: Text | None
    python: Text
    torch: Text | None
    numpy: Text | None
    platform: Text
    cpu: Text
    cores: int | None
    gpu: Text | None
    seed: int | None
    command: list[Text]
    started: Text
    resumed: tuple[Environment, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run folder on disk; make one with :meth:`create`, :meth:`resume` or :meth:`open`."""

    path: Path

    @classmethod
    def create(
        cls,
        path: str | Path,
        recipe: Config,
        *,
        seed: int | None = None,
        command: Sequence[str] | None = None,
        force: bool = False,
    ) -> Run:
        """Make the folder of a new run.

        Args:
            path: where; parents are made as needed.
            recipe: the resolved recipe.
            seed: the seed of the run, for the record; by default the recipe's key of that name.
            command: the command line; by default that of this process.
            force: replace a run that is there already (a folder that holds no run is never replaced).
        """
        from wdae.config import dump

        path = Path(path)
        text = dump(recipe)
        seed = getattr(recipe, "seed", None) if seed is None else seed
        record = environment(seed=seed, command=sys.argv if command is None else command)
        with _room(path, force), atomic_folder(path, replace=True) as folder:
            write_text(folder / RECIPE, text)
            write_json(folder / ENVIRONMENT, record)
            (folder / METRICS).touch()
            (folder / "results").mkdir()
            (folder / "plots").mkdir()
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run, to read from or to add results to."""
        path = Path(path)
        if not (path / RECIPE).is_file():
            what = "holds no run (no recipe.yaml)" if path.exists() else "does not exist"
            raise RunError(f"{path} {what}; give the folder that a command wrote with -o")
        refuse_links(path)
        return cls(path)

    @classmethod
    def resume(cls, path: str | Path, *, command: Sequence[str] | None = None) -> Run:
        """An existing run, to go on with: a half-written last line of its metrics is dropped."""
        run = cls.open(path)
        with run.alone():
            run._write_metrics(run.metrics())
            record = run.environment()
            again = environment(seed=record.get("seed"), command=sys.argv if command is None else command)
            record.setdefault("resumed", []).append(again)
            write_json(run.path / ENVIRONMENT, record)
        return run

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run while the body works on it; a second process is told, not let in."""
        with alone(self.path, patience=0):
            yield

    def recipe(self, cls: type[T]) -> T:
        """The run's recipe: what it was made with. Paths that it names are for the caller not to follow."""
        from wdae.config import load

        return load(cls, self.path / RECIPE, outside=True)

    def keys(self) -> dict[str, Any]:
        """The recipe's values by dotted key, whatever command it is of."""
        from wdae.config.inheritance import read

        return dict(_flat(read(self.path / RECIPE).data))

    def environment(self) -> dict[str, Any]:
        """Versions, commit, machine, seed and times (:func:`wdae.runs.environment.environment`)."""
        record = read_record(Environment, self.path / ENVIRONMENT)
        return record.model_dump(mode="json", exclude_unset=True)

    @property
    def results(self) -> Path:
        """The folder of result files."""
        return self._folder("results")

    @property
    def plots(self) -> Path:
        """The folder of plots."""
        return self._folder("plots")

    @property
    def report(self) -> Path:
        """Where the report stands once it is written."""
        return self.path / REPORT

    def log(self, **values: Any) -> None:
        """Append one line to the metrics, and hand it to what tracks (:mod:`wdae.runs.tracking`).

        Numbers that JSON cannot say (NaN, infinities) become null.
        """
        line = {key: _plain(value) for key, value in values.items()}
        append_text(self.path / METRICS, json.dumps(line, allow_nan=False) + "\n")
        track(self.path, line, lambda: (self.keys(), self.environment()["started"]))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of the metrics, without a last line that was cut short."""
        path = self.path / METRICS
        if not path.exists():
            return []
        rows: list[dict[str, Any]] = []
        with open_regular(path, follow=False) as file:
            while (line := file.readline(_LONGEST_LINE + 1)).endswith(b"\n"):
                row = parse(line, f"{path} line {len(rows) + 1}")
                if not isinstance(row, dict) or not isinstance(row.get("step"), (int, type(None))):
                    raise StorageError(f"{path} line {len(rows) + 1} is no line of metrics: it was altered")
                rows.append(row)
        if len(line) > _LONGEST_LINE:
            raise StorageError(f"{path} line {len(rows) + 1} is longer than {_LONGEST_LINE} bytes")
        return rows

    def truncate_metrics(self, step: int) -> None:
        """Drop what was logged after ``step``: the step of the checkpoint that the run goes on from."""
        rows = self.metrics()
        later = (i for i, row in enumerate(rows) if row.get("step") is not None and row["step"] > step)
        self._write_metrics(rows[: next(later, len(rows))])

    def drop_metrics(self, name: str) -> None:
        """Drop the lines that have a figure of this name: it was measured anew."""
        self._write_metrics([row for row in self.metrics() if name not in row])

    def _write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        write_bytes(self.path / METRICS, text.encode())

    def _folder(self, name: str) -> Path:
        make_folder(self.path / name)
        return self.path / name


@contextmanager
def _room(path: Path, force: bool) -> Iterator[None]:
    """Hold a run that may be replaced, or say why what lies at ``path`` may not be."""
    if not path.exists() or (path.is_dir() and all(file.name == LOCK for file in path.iterdir())):
        yield
        return
    if not (path / RECIPE).is_file():
        raise RunError(f"{path} exists and holds no run, so it is left alone; choose another folder (-o)")
    if not force:
        raise RunError(
            f"{path} holds a run already; choose another folder (-o), go on with that run (resume, --resume),"
            " or replace it (force, --force)"
        )
    with alone(path, patience=0):
        yield


def exclusively(function: Callable[Concatenate[Run, P], V]) -> Callable[Concatenate[Run, P], V]:
    """Hold the run that a function works on (its first argument) for as long as it works."""

    @wraps(function)
    def held(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> V:
        with run.alone():
            return function(run, *args, **kwargs)

    return held


def _flat(keys: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # tensors and arrays, scalars of theirs included
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
