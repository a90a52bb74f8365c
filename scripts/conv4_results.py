"""Conv-4 from pictures for the documents: keep what runs showed, and write their part of the page.

    python scripts/conv4_results.py runs/conv4-prototypical-1 runs/conv4-prototypical-5 ...

Each run of ``wdae episodic`` (or of ``wdae train`` with ``conv4-lwof.yaml``) becomes
``results/conv4/NAME.json``: recipe, environment, digest of the weights, curve on validation classes, and the
figures on novel classes. ``make_results.py write`` puts all of them on the page, with the words of
``results/conv4/NAME.md`` (why a figure is not the paper's), where there are some.

``stopped_at`` in a row's ``info`` is the step at which the clock ended a training early (``--test-stopped``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from result_records import of_commit, refuse_unclean, without_paths

from wdae.evaluation.paper import FROM_PICTURES
from wdae.evaluation.results import Estimate
from wdae.evaluation.table import ResultTable
from wdae.printing import markdown_table
from wdae.runs.run import Run
from wdae.storage.files import sha256
from wdae.storage.records import read_json, write_json

RECORDS = Path(__file__).parent.parent / "results" / "conv4"
LWOF = "conv4-lwof"
WORDS = """\
After the Conv-4 rows of the paper's table 2 (and matching networks, which it has no row of), from pictures:
backbone and method are trained together on episodes of base classes (`wdae episodic`), LwoF in its two
stages. [Notation](notation.md) lists what differs from the authors' trainings. Each network was trained once.
5-way, 15 queries a class; intervals are of 95 % over episodes. Validation classes chose the weights. Each of
these networks was tested on novel classes once, but recipes are not untouched by them: figures of earlier
trainings were known. BatchNorm uses its running statistics in tests, so no query sees another, but for rows
marked *transductive*, as published. *Difference*: ours less the paper's.
"""
KEPT = ("wdae", "commit", "torch", "gpu", "cpu", "cores")


def collect(path: Path) -> dict[str, Any]:
    """The record of one run."""
    run = Run.open(path)
    environment = run.environment()
    refuse_unclean(path, environment)
    recipe = yaml.safe_load((run.path / "recipe.yaml").read_text())
    wanted = recipe["name"] if "name" in recipe else recipe["method"]
    found = [result for result in ResultTable.load(run.results) if result.method == wanted]
    return {
        "name": path.name,
        "recipe": without_paths(recipe),
        "environment": {key: environment.get(key) for key in KEPT},
        "weights": sha256(run.path / "model.safetensors"),
        "curve": [
            {"step": row["step"], "validation": row["validation"]}
            for row in run.metrics()
            if "validation" in row
        ],
        "rows": [
            {
                "method": result.method,
                "n_shot": result.n_shot,
                "n_episodes": result.episodes["n_episodes"],
                "novel": vars(result.metrics["novel"]),
                "info": dict(result.info),
            }
            for result in found
        ],
    }


def section(folder: Path) -> list[str]:
    """The page's part: one line for each figure, then what explains differences."""
    records = [read_json(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        return []
    head = ["method", "backbone", "shots", "ours", "paper", "difference"]
    head += ["test episodes", "training episodes", "minutes"]
    rows, reasons = [], []
    for record in records:
        recipe = record["recipe"]
        for row in record["rows"]:
            info, n_shot, ours = row["info"], row["n_shot"], Estimate(**row["novel"])
            backbone = recipe.get("backbone", "conv4-64")
            name = "lwof-conv4" if row["method"] == LWOF else row["method"]
            name = f"{name}-512" if backbone == "conv4-512" else name
            paper = FROM_PICTURES.get(name, {}).get("novel", {}).get(n_shot)
            mark = " (transductive)" if info.get("transductive") else ""
            trained = ""
            if episode := recipe.get("episode"):
                each = episode["per_step"] * episode.get("splits", 1)
                trained = f"{_steps(record) * each:,}"
                trained += f" of {recipe['steps'] * each:,}" if "stopped_at" in info else ""
            minutes = info.get("training_seconds")
            rows.append(
                [
                    name.removesuffix("-512") + mark,
                    backbone,
                    str(n_shot),
                    ours.percent(),
                    "" if paper is None else _paper(*paper),
                    "" if paper is None else f"{100 * ours.mean - paper[0]:+.2f}",
                    f"{row['n_episodes']:,}",
                    trained,
                    "" if minutes is None or not trained else f"{minutes / 60:.1f}",
                ]
            )
    for path in sorted(folder.glob("*.md")):
        reasons += [path.read_text().strip(), ""]
    gpu = sorted({str(record["environment"]["gpu"]) for record in records})
    commits = sorted({of_commit(record["environment"]) for record in records})
    out = ["## Conv-4 from pictures, after table 2", "", *WORDS.splitlines()]
    out += [
        "*Training episodes*, *of*: stopped before the last one; the same pictures count again where they",
        "are split into other shots and queries. *Minutes*: of training, several side by side on one device:",
        f"{', '.join(gpu)}; {', '.join(commits)}.",
    ]
    return [*out, "", *markdown_table(head, rows, left=head[:2]), "", *reasons]


def _paper(mean: float, ci95: float | None) -> str:
    return f"{mean:.2f}" + ("" if ci95 is None else f" ± {ci95:.2f}")


def _steps(record: dict[str, Any]) -> int:
    stopped = record["rows"][0]["info"].get("stopped_at")
    return int(record["recipe"]["steps"] if stopped is None else stopped)


def main(words: list[str]) -> None:
    if not words:
        sys.exit(__doc__)
    RECORDS.mkdir(parents=True, exist_ok=True)
    for word in words:
        record = collect(Path(word))
        write_json(RECORDS / f"{record['name']}.json", record)
        print(RECORDS / f"{record['name']}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
