"""Tables of results: on a terminal, as CSV, JSON and Markdown, and in a folder of result files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.errors import WdaeError
from wdae.evaluation.results import METRICS, Estimate, Result, is_result, paired
from wdae.printing import cell, csv_cell, markdown_table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

TITLES = {
    "novel": "novel",
    "base": "base",
    "all": "all",
    "all_prior": "all, prior",
    "harmonic": "harmonic",
}


def title(metric: str) -> str:
    """A metric's heading: ``novel_top5`` is ``novel, top 5``.

    >>> title("novel_top5")
    'novel, top 5'
    """
    name = metric.removesuffix("_top5")
    return TITLES.get(name, name) + (", top 5" if metric.endswith("_top5") else "")


@dataclass(frozen=True)
class ResultTable:
    """Several results, in order; iterates over them.

    >>> from wdae import InitialEstimate, few_way, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> table = ResultTable(tuple(few_way(InitialEstimate(), bank, k, n_episodes=20) for k in (1, 5)))
    >>> [(result.method, result.n_shot) for result in table]
    [('initial-estimate', 1), ('initial-estimate', 5)]
    """

    results: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def metrics(self) -> list[str]:
        """Every metric that some result has, in the usual order."""
        found = {name for result in self.results for name in result.metrics}
        usual = [name + suffix for suffix in ("", "_top5") for name in METRICS]
        return [name for name in usual if name in found] + sorted(found - set(usual))

    def gains(self, baseline: str, metric: str) -> list[tuple[Result, Estimate]]:
        """The paired gain over the method ``baseline`` of every result that has the same episodes."""
        by_episodes = {_key(r): r for r in self.results if r.method == baseline and metric in r.metrics}
        return [
            (result, paired(result, by_episodes[_key(result)], metric))
            for result in self.results
            if result.method != baseline and metric in result.metrics and _key(result) in by_episodes
        ]

    def rows(self) -> list[dict[str, Any]]:
        """One flat record per result and metric, in fractions."""
        return [
            {"method": r.method, **r.episodes, "metric": name, "mean": e.mean, "ci95": e.ci95, "n": e.n}
            for r in self.results
            for name, e in r.metrics.items()
        ]

    def cells(self, metrics: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
        """Heading and rows of the table for people, in percent; by default the metrics people ask for."""
        if metrics is None:
            metrics = [m for m in self.metrics if m.removesuffix("_top5") in self._shown]
        head = ["method", "episodes", *(title(m) for m in metrics)]
        body = [
            [r.label, f"{r.n_way}-way {r.n_shot}-shot"]
            + [str(r.metrics[m]) if m in r.metrics else "" for m in metrics]
            for r in self.results
        ]
        return head, body

    @property
    def _shown(self) -> set[str]:
        """A prior over novel and base classes is part of the all-way protocol alone."""
        prior = {"all_prior"} if any(r.protocol == "all-way" for r in self.results) else set()
        return {"novel", "base", "all", "harmonic"} | prior

    def rich(self, caption: str | Text | None = None) -> Table:
        """The table for a terminal; it fits 80 columns. Print it with ``rich.print``."""
        from rich import box
        from rich.table import Table

        head, body = self.cells()
        heading = "Accuracy, % (mean ± 95 % interval over episodes)"
        ways = {result.n_way for result in self.results}
        if len(ways) == 1:  # then the number of shots says it all
            heading = f"{ways.pop()}-way accuracy, % (mean ± 95 % interval over episodes)"
            head[1] = "shots"
            for row, result in zip(body, self.results, strict=True):
                row[1] = str(result.n_shot)
        table = Table(
            title=heading,
            caption=caption,
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for i, row in enumerate(body):
            last_of_group = i + 1 < len(body) and body[i + 1][1] != row[1]
            table.add_row(*map(cell, row), end_section=last_of_group)
        return table

    def csv(self) -> str:
        """One line per result and metric, in fractions; an interval that does not exist is empty."""
        rows = self.rows()
        if not rows:
            return ""
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for r in rows:
            record = {**r, "ci95": "" if math.isnan(r["ci95"]) else r["ci95"]}
            writer.writerow({key: csv_cell(value) for key, value in record.items()})
        return out.getvalue()

    def json(self) -> str:
        """A list of results in the schema of :mod:`wdae.evaluation.results`."""
        return json.dumps([result.to_dict() for result in self.results], indent=2)

    def markdown(self) -> str:
        """The table for a document."""
        head, body = self.cells()
        return "\n".join(markdown_table(head, body, left=["method", "episodes"]))

    def save(self, folder: str | Path) -> list[Path]:
        """Write every result into a folder."""
        names = [result.name for result in self.results]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise WdaeError(
                f"two results would have the same file {sorted(twice)[0]!r}; give them other names"
            )
        return [result.save(folder) for result in self.results]

    @classmethod
    def load(cls, folder: str | Path) -> ResultTable:
        """Read every result of a folder, by protocol, shots and method; other JSON files are passed over."""
        paths = [path for path in sorted(Path(folder).glob("*.json")) if is_result(path)]
        results = [Result.load(path) for path in paths]
        return cls(tuple(sorted(results, key=lambda r: (r.protocol, r.n_way, r.n_shot, r.method, r.seed))))


def _key(result: Result) -> tuple[Any, ...]:
    return tuple(result.episodes.values())
