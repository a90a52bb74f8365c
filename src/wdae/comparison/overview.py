"""Several run folders side by side: what their recipes differ in, and what each reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdae.errors import RunError, nearest
from wdae.evaluation.plots import LINES, MARKERS, figure, line_style
from wdae.evaluation.results import Estimate, Result
from wdae.evaluation.table import ResultTable
from wdae.evaluation.text_table import RecordTable, TextTable
from wdae.printing import printable
from wdae.runs.run import Run

VALIDATION = ("validation", "val_score")
"""What stage 2 and stage 1 call the accuracy that weights are chosen by."""
SMALL_IS_BETTER = ("loss", "reconstruction", "classification")
"""Words in the names of figures that are losses."""
Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class RunsTable(RecordTable):
    """Runs of ``wdae train``, ``pretrain`` or ``episodic``, with the keys in which their recipes differ."""

    metric: str
    runs: dict[str, Run]
    curves: dict[str, Curve]
    keys: dict[str, dict[str, Any]]
    results: dict[str, ResultTable]

    @classmethod
    def of(cls, paths: Sequence[Path], metric: str | None = None, *, test: bool = False) -> RunsTable:
        """Read run folders; ``metric`` is a figure of their metrics, by default the validation accuracy.

        Args:
            test: read test results as well: not what to choose by.
        """
        runs = {str(path): Run.open(path) for path in paths}
        lines = {name: run.metrics() for name, run in runs.items()}
        known = {key for rows in lines.values() for row in rows for key in _numbers(row)}
        chosen = metric or next((name for name in VALIDATION if name in known), None)
        if chosen is None or chosen not in known:
            asked = f"no run has logged {chosen!r}" if chosen else "no run has a validation accuracy"
            raise RunError(f"{asked}{nearest(chosen or '', known - {'step'})}; name a figure: --metric loss")
        curves = {
            name: [(row["step"], row[chosen]) for row in rows if {"step", chosen} <= _numbers(row)]
            for name, rows in lines.items()
        }
        keys = {name: run.keys() for name, run in runs.items()}
        every = dict.fromkeys(key for own in keys.values() for key in own)
        differing = [key for key in every if len({repr(own.get(key)) for own in keys.values()}) > 1]
        tables = {name: ResultTable.load(run.results) for name, run in runs.items()} if test else {}
        return cls(
            chosen,
            runs,
            curves,
            {name: {key: own.get(key) for key in differing} for name, own in keys.items()},
            tables,
        )

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each run: its keys, the best figure and its step, the last one.

        The best of a loss is its smallest, of anything else the largest.
        """
        best_of = min if any(word in self.metric for word in SMALL_IS_BETTER) else max
        records: list[dict[str, Any]] = []
        for name in self.runs:
            curve = self.curves[name]
            step, best = best_of(curve, key=lambda at: at[1]) if curve else (None, None)
            records.append(
                {
                    "run": name,
                    **{key: _plain(value) for key, value in self.keys[name].items()},
                    f"best {self.metric}": best,
                    "step": step,
                    f"last {self.metric}": curve[-1][1] if curve else None,
                    **{column: estimate.mean for column, estimate in self._tested(name).items()},
                }
            )
        head = dict.fromkeys(key for record in records for key in record)
        return [{key: record.get(key) for key in head} for record in records]

    def _tested(self, name: str) -> dict[str, Estimate]:
        """Test accuracies of what the run trained, by metric and shots."""
        own: list[Result] = [r for r in self.results.get(name, ()) if r.method != "initial-estimate"]
        names = ("novel", "all")
        return {f"{m}, {r.n_shot}-shot": r.metrics[m] for r in own for m in names if m in r.metrics}

    def text(self) -> TextTable:
        """The table for people."""
        records = self.records()
        head = list(records[0])
        rows = []
        for record in records:
            tested = self._tested(record["run"])
            rows.append([tested[key].percent() if key in tested else _shown(record[key]) for key in head])
        caption = "Keys that every run has alike are left out."
        if self.results:
            caption += " Test figures, in %, are not to choose by: validation classes are for that."
        return TextTable(head, rows, caption=caption, left=("run",))

    def draw(self, folder: Path) -> list[Path]:
        """The figure against the step, a line for each run, all in one picture."""
        with figure(7.5, 4.5) as (fig, save):
            axes = fig.subplots()
            for i, (name, curve) in enumerate(self.curves.items()):
                style = line_style(i) | {"linestyle": LINES[i // len(MARKERS) % len(LINES)]}
                steps, values = [at for at, _ in curve], [value for _, value in curve]
                axes.plot(steps, values, label=printable(name), markersize=4, **style)
            axes.set_xlabel("step")
            axes.set_ylabel(self.metric.replace("_", " "))
            axes.legend(fontsize=8)
            return save(folder, "curves")


def _numbers(row: dict[str, Any]) -> set[str]:
    return {k for k, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
