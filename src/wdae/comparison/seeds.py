"""A comparison with several seeds of training: the mean over them, and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdae.bank import FeatureBank
from wdae.comparison.config import CompareRecipe
from wdae.comparison.run import run_comparison
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.evaluation.text_table import RecordTable, TextTable
from wdae.runs.run import Run

_METRICS = ("novel", "base", "all")


def run_seeds(run: Run, recipe: CompareRecipe, bank: FeatureBank) -> SeedsTable:
    """The comparison once for each seed, in folders of their own, all on the same test episodes."""
    tables = {}
    drawn = recipe.seed if recipe.episode_seed is None else recipe.episode_seed
    for seed in dict.fromkeys(recipe.seeds):
        own = recipe.model_copy(update={"seed": seed, "seeds": (), "episode_seed": drawn})
        folder = run.path / f"seed-{seed}"
        part = Run.resume(folder) if folder.exists() else Run.create(folder, own, seed=seed)
        tables[seed] = run_comparison(part, own, bank)
    return SeedsTable(tables)


@dataclass(frozen=True)
class SeedsTable(RecordTable):
    """Results of the same methods on the same episodes, by seed of training.

    >>> facts = {"protocol": "few-way", "n_way": 5, "n_shot": 1, "seed": 0, "method": "mine"}
    >>> results = [Result.of({"novel": [0.5, last]}, **facts) for last in (0.5, 0.7)]
    >>> table = SeedsTable({seed: ResultTable((result,)) for seed, result in enumerate(results)})
    >>> [(r["method"], round(r["novel"], 2), round(r["novel_spread"], 3)) for r in table.records()]
    [('mine', 0.55, 0.071)]
    """

    tables: Mapping[int, ResultTable]

    def records(self) -> list[dict[str, Any]]:
        """For each method and number of shots, mean and standard deviation over the seeds, in fractions."""
        return [
            {
                "method": found[0].method,
                "n_shot": found[0].n_shot,
                "seeds": len(found),
                "as_it_started": sum(bool(result.info.get("start_kept")) for result in found),
                **_spread(found),
            }
            for found in self._rows()
        ]

    def _rows(self) -> list[list[Result]]:
        rows: dict[tuple[int, str], list[Result]] = {}
        for table in self.tables.values():
            for result in table:
                rows.setdefault((result.n_shot, result.method), []).append(result)
        return list(rows.values())

    def text(self) -> TextTable:
        """The table for people, in percent; † on a method that some seed left as it started."""
        rows = []
        for record in self.records():
            cells = [
                "–" if record[m] is None else f"{100 * record[m]:.2f} ± {100 * record[f'{m}_spread']:.2f}"
                for m in _METRICS
            ]
            mark = f" †{record['as_it_started']}" if record["as_it_started"] else ""
            rows.append([str(record["n_shot"]), record["method"] + mark, *cells])
        caption = (
            f"Accuracy in %, mean ± standard deviation over {len(self.tables)} seeds of training "
            f"({', '.join(map(str, self.tables))}), all on the same test episodes. †n: in n of them the "
            "method stands as it started."
        )
        return TextTable(["shots", "method", *_METRICS], rows, caption=caption, sections="shots")

    def save(self, folder: Path) -> None:
        """``seeds.csv``, ``.json`` and ``.md`` in a folder."""
        self.write(folder, "seeds")


def _spread(found: Sequence[Result]) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for metric in _METRICS:
        means = [result.metrics[metric].mean for result in found if metric in result.metrics]
        values[metric] = statistics.fmean(means) if means else None
        values[f"{metric}_spread"] = statistics.stdev(means) if len(means) > 1 else 0.0 if means else None
    return values
