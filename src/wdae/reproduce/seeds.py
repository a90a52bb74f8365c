"""Several seeds of stage 2 on the same features and episodes: the mean over them, and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdae.errors import RecipeError
from wdae.evaluation.table import title
from wdae.evaluation.text_table import TextTable
from wdae.reproduce.benchmarks import Benchmark
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.run import open_run, reproduce
from wdae.storage.files import write_text
from wdae.storage.records import write_json

JSON, PAGE = "seeds.json", "seeds.md"


def run_seeds(
    benchmark: Benchmark, recipe: ReproduceRecipe, output: Path, *, resume: bool = False, force: bool = False
) -> TextTable:
    """The reproduction once for each seed, in a folder of its own; their figures together: ``seeds.md``."""
    if recipe.data is not None:
        raise RecipeError(
            "--seeds trains stage 2 again, not stage 1; run --data without it first, then give the banks of"
            " that run (--bank RUN/banks/whole, --held-out-bank RUN/banks/held-out) with --seeds"
        )
    drawn = recipe.seed if recipe.episode_seed is None else recipe.episode_seed
    records = {}
    for seed in dict.fromkeys(recipe.seeds):
        own = recipe.model_copy(update={"seed": seed, "seeds": (), "episode_seed": drawn})
        folder = output / f"seed-{seed}"
        again = resume and folder.exists()
        run, own = open_run(benchmark, own, folder, resume=again, force=force)
        records[seed] = reproduce(run, benchmark, own)
    rows = spread(records)
    write_json(output / JSON, rows)
    table = seeds_table(rows, list(records))
    write_text(output / PAGE, table.markdown() + "\n")
    return table


def spread(records: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each table, row and number of shots: mean and standard deviation over the seeds, in fractions.

    >>> def record(mean):
    ...     line = {"row": "a", "label": "A", "n_shot": 1, "metrics": {"novel": {"mean": mean}}}
    ...     facts = {"number": 2, "title": "t", "role": "whole", "metrics": ["novel"]}
    ...     return {"tables": [facts | {"rows": [line]}]}
    >>> records = {0: record(0.5), 1: record(0.6)}
    >>> [(r["row"], round(r["novel"], 2), round(r["novel_spread"], 3)) for r in spread(records)]
    [('a', 0.55, 0.071)]
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records.values():
        for table in record["tables"]:
            for line in table["rows"]:
                key = (table["number"], table["title"], table["role"], line["row"], line["n_shot"])
                names = ("table", "title", "role", "row", "n_shot")
                entry = found.setdefault(key, dict(zip(names, key, strict=True)) | {"label": line["label"]})
                for metric in table["metrics"]:
                    if metric in line["metrics"]:
                        entry.setdefault("values", {}).setdefault(metric, []).append(
                            line["metrics"][metric]["mean"]
                        )
    for entry in found.values():
        for metric, means in entry.pop("values", {}).items():
            entry[metric] = statistics.fmean(means)
            entry[f"{metric}_spread"] = statistics.stdev(means) if len(means) > 1 else 0.0
    return list(found.values())


def seeds_table(rows: list[dict[str, Any]], seeds: list[int]) -> TextTable:
    """The table for people, in percent: a line for each row; table and features where they differ."""
    found = [key.removesuffix("_spread") for row in rows for key in row if key.endswith("_spread")]
    columns = [(m, k) for m in dict.fromkeys(found) for k in sorted({row["n_shot"] for row in rows})]
    lines: dict[tuple[str, str, str, str], dict[tuple[str, int], str]] = {}
    for row in rows:
        number = "ours" if row["table"] is None else str(row["table"])
        cells = lines.setdefault((number, row["title"], row["role"], row["label"]), {})
        for m in dict.fromkeys(found):
            if m in row:
                cells[m, row["n_shot"]] = f"{100 * row[m]:.2f} ± {100 * row[f'{m}_spread']:.2f}"
    caption = (
        f"Accuracy in %, mean ± standard deviation over {len(seeds)} seeds of stage 2 "
        f"({', '.join(map(str, seeds))}), all on the same features and test episodes."
    )
    named = {"table": 0, "features": 2, "row": 3}
    named = {name: at for name, at in named.items() if name == "row" or len({key[at] for key in lines}) > 1}
    body = [
        [*(key[at] for at in named.values()), *(cells.get(column, "") for column in columns)]
        for key, cells in lines.items()
    ]
    head = [*named, *(f"{title(m)}, {k}-shot" for m, k in columns)]
    return TextTable(head, body, caption=caption, left=[*named])
