"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from wdae.errors import MissingExtraError
from wdae.evaluation.plots import accuracy_against_shots, training_curves
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.evaluation.text_table import TextTable
from wdae.runs.run import RECIPE, Run
from wdae.storage.files import read_bytes, write_text
from wdae.storage.records import MAX_BYTES

_CAPTIONS = {
    "training": "Training: every logged value, and its running mean where there are many.",
    "accuracy": "Accuracy against the number of shots; bars are 95 % intervals over episodes.",
    "class-graph": "The class graph: stars are novel classes, lines lead to their neighbours; hollow "
    "stars mark where they were before.",
}


def write_report(run: Run, *, baseline: str | None = None) -> Path:
    """Write ``report.html`` from what the run folder holds, drawing what plots can be drawn from it.

    Args:
        run: the run.
        baseline: the method that the others' paired gains are taken over; by default the one whose name
            begins with "initial".
    """
    table = ResultTable.load(run.results)
    notes = []
    try:
        training_curves(run.metrics(), run.plots)
        accuracy_against_shots(table, run.plots)
    except MissingExtraError as missing:
        notes.append(str(missing))
    if baseline is None:
        baseline = next((r.method for r in table if r.method.startswith("initial")), None)
    record, name = run.environment(), run.path.resolve().name
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="dim">{escape(_summary(record))}</p>',
        *_results(table, baseline),
        *_figures(run.plots, notes),
        "<h2>How it was made</h2>",
        _details("Recipe", f"<pre>{escape(_text(run.path / RECIPE))}</pre>"),
        _details("Environment", _environment(record)),
    ]
    write_text(run.report, _page(name, body))
    return run.report


def _text(path: Path) -> str:
    return read_bytes(path, MAX_BYTES, follow=False).decode("utf-8", "replace")


def _page(name: str, body: Iterable[str]) -> str:
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be fetched and nothing run, even if a class name were to slip through unescaped.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(name)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _summary(record: dict[str, Any]) -> str:
    parts = [f"wdae {record.get('wdae')}"]
    if record.get("commit"):
        commit = str(record["commit"])
        parts.append(f"commit {commit[:10]}" + (" with changes" if commit.endswith("+") else ""))
    parts += [f"seed {record.get('seed')}", str(record.get("started", ""))]
    return " · ".join(parts)


def _results(table: ResultTable, baseline: str | None) -> list[str]:
    """Accuracies, and gains over the baseline, for each protocol."""
    if not len(table):
        return ['<p class="dim">This run has no results yet.</p>']
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in table:
        groups.setdefault((result.protocol, result.n_way), []).append(result)
    accuracies, gains = ["<h2>Accuracy</h2>"], []
    for (protocol, n_way), group in groups.items():
        part = ResultTable(tuple(group))
        name = f"{escape(protocol)}, {n_way} novel classes"
        episodes = " or ".join(sorted({f"{r.n_episodes:,}" for r in group}))
        accuracies += [
            f'<p class="dim">{name}: %, mean ± 95 % interval over {episodes} episodes</p>',
            part.accuracies(part.metrics).html(),
        ]
        if baseline is not None:
            found = part.differences(baseline, [m for m in part.metrics if not m.endswith("_top5")])
            gains += [f'<p class="dim">{name}</p>', found.html()] if found.rows else []
    if gains:
        gains = [
            f"<h2>Gain over {escape(baseline or '')}</h2>",
            '<p class="dim">Points, on the same episodes (paired 95 % interval); coloured where the interval '
            "excludes zero</p>",
            *gains,
        ]
    return [*accuracies, *gains]


def _figures(folder: Path, notes: Sequence[str]) -> list[str]:
    paths = {path.stem: path for kind in ("png", "svg") for path in sorted(folder.glob(f"*.{kind}"))}
    if not paths and not notes:
        return []
    known = list(_CAPTIONS)

    def place(stem: str) -> int:
        return next((i for i, name in enumerate(known) if stem.startswith(name)), len(known))

    out = ["<h2>Plots</h2>", *(f'<p class="dim">{escape(note)}</p>' for note in notes)]
    for stem in sorted(paths, key=lambda stem: (place(stem), stem)):
        form = "svg+xml" if paths[stem].suffix == ".svg" else "png"
        data = base64.b64encode(paths[stem].read_bytes()).decode("ascii")
        caption = escape([*_CAPTIONS.values(), stem][place(stem)])
        picture = f'<img alt="{caption}" src="data:image/{form};base64,{data}">'
        out.append(f"<figure><div>{picture}</div><figcaption>{caption}</figcaption></figure>")
    return out


def _environment(record: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return " ".join(value)
        if isinstance(value, dict | list):
            return json.dumps(value)
        return "none" if value is None else str(value)

    return TextTable((), [[key, text(value)] for key, value in record.items()]).html()


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
