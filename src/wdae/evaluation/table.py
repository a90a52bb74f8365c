"""Results of several methods as a table, and as a folder of result files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.errors import WdaeError
from wdae.evaluation.results import METRICS, Estimate, Result, is_result, paired
from wdae.evaluation.text_table import TextTable, csv_records, json_records

if TYPE_CHECKING:
    from rich.table import Table


def title(metric: str) -> str:
    """The heading of a metric.

    >>> title("all_prior_top5")
    'all, prior, top 5'
    """
    return metric.replace("_prior", ", prior").replace("_top5", ", top 5")


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

    def accuracies(self, metrics: Sequence[str] | None = None, caption: str = "") -> TextTable:
        """The accuracies in percent, by default of the metrics that people ask for."""
        if metrics is None:
            # A prior over novel and base classes is part of the all-way protocol alone.
            shown = {*METRICS} - (set() if any(r.protocol == "all-way" for r in self) else {"all_prior"})
            metrics = [m for m in self.metrics if m.removesuffix("_top5") in shown]
        ways = {result.n_way for result in self}
        one = f"{next(iter(ways))}-way accuracy" if len(ways) == 1 else ""
        rows = [
            [r.label, str(r.n_shot) if one else f"{r.n_way}-way {r.n_shot}-shot"]
            + [str(r.metrics[m]) if m in r.metrics else "" for m in metrics]
            for r in self
        ]
        head = ["method", "shots" if one else "episodes", *(title(m) for m in metrics)]
        heading = f"{one or 'Accuracy'}, % (mean ± 95 % interval over episodes)"
        return TextTable(head, rows, heading, caption, sections=head[1])

    def differences(self, baseline: str, metrics: Sequence[str] = ("novel", "base", "all")) -> TextTable:
        """Paired gains over a method in points; marked where the interval excludes zero."""
        gains = {m: {id(r): gain for r, gain in self.gains(baseline, m)} for m in metrics}
        shown = [m for m in metrics if gains[m]]
        rows: list[list[str | tuple[str, str]]] = []
        for result in self:
            found = [gains[m].get(id(result)) for m in shown]
            if any(gain is not None for gain in found):
                cells = [("", "") if gain is None else gain.marked() for gain in found]
                rows.append([result.label, str(result.n_shot), *cells])
        heading = f"Gain over {baseline}, points (paired, ± 95 %)"
        return TextTable(["method", "shots", *(title(m) for m in shown)], rows, heading)

    def rich(self, caption: str = "") -> Table:
        """The accuracies for a terminal; it fits 80 columns. Print it with ``rich.print``."""
        return self.accuracies(caption=caption).rich()

    def markdown(self) -> str:
        """The accuracies for a document."""
        return self.accuracies().markdown()

    def csv(self) -> str:
        """One line for each result and metric, in fractions; an interval that does not exist is empty."""
        return csv_records(
            [
                {"method": r.method, **r.episodes, "metric": name, "mean": e.mean, "ci95": e.ci95, "n": e.n}
                for r in self
                for name, e in r.metrics.items()
            ]
        )

    def json(self) -> str:
        """A list of results in the schema of :mod:`wdae.evaluation.results`."""
        return json_records([result.to_dict() for result in self])

    def save(self, folder: str | Path) -> list[Path]:
        """Write every result into a folder."""
        names = [result.name for result in self]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise WdaeError(
                f"two results would have the same file {sorted(twice)[0]!r}; give them other names"
            )
        return [result.save(folder) for result in self]

    @classmethod
    def load(cls, folder: str | Path) -> ResultTable:
        """Read every result of a folder, by protocol, shots and method; other JSON files are skipped."""
        paths = [path for path in sorted(Path(folder).glob("*.json")) if is_result(path)]
        results = [Result.load(path) for path in paths]
        return cls(tuple(sorted(results, key=lambda r: (r.protocol, r.n_way, r.n_shot, r.method, r.seed))))


def _key(result: Result) -> tuple[Any, ...]:
    return tuple(result.episodes.values())
