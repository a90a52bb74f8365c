"""A run on one page: ``report.html`` asks nothing of the network, whatever it is opened on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from wdae.errors import MissingExtraError
from wdae.evaluation.plots import accuracy_against_shots, training_curves
from wdae.evaluation.table import ResultTable, title
from wdae.runs.run import RECIPE, Run
from wdae.storage.files import write_text

_CAPTIONS = {
    "training": "Training: every logged value, and its running mean where there are many.",
    "accuracy": "Accuracy against the number of shots; bars are 95 % intervals over episodes.",
    "class-graph": "The class graph: stars are novel classes, lines lead to the classes they listen to; "
    "hollow stars mark where they stood before.",
}


def write_report(run: Run, *, heading: str | None = None, baseline: str | None = None) -> Path:
    """Write ``report.html`` from what the run folder holds, drawing what plots can be drawn from it.

    Args:
        run: the run.
        heading: the page's heading; the folder's name by default.
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
    record = run.environment()
    body = [
        f"<h1>{escape(heading or run.path.resolve().name)}</h1>",
        f'<p class="dim">{escape(_summary(record))}</p>',
        *_results(table),
        *(_gains(table, baseline) if baseline is not None else ()),
        *_figures(run.plots, notes),
        "<h2>How it was made</h2>",
        _details("Recipe", f"<pre>{escape((run.path / RECIPE).read_text(encoding='utf-8'))}</pre>"),
        _details("Environment", _environment(record)),
    ]
    write_text(run.report, _page(heading or run.path.resolve().name, body))
    return run.report


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


def _results(table: ResultTable) -> list[str]:
    if not len(table):
        return ['<p class="dim">This run has no results yet.</p>']
    out = ["<h2>Accuracy</h2>"]
    for (protocol, n_way), group in _by_protocol(table).items():
        part = ResultTable(tuple(group))
        head = ["method", "shots", *(title(m) for m in part.metrics)]
        rows = [
            [r.label, str(r.n_shot), *(str(r.metrics[m]) if m in r.metrics else "" for m in part.metrics)]
            for r in sorted(group, key=lambda r: (r.n_shot, r.method))
        ]
        episodes = " or ".join(sorted({f"{r.n_episodes:,}" for r in group}))
        out.append(
            f'<p class="dim">{escape(protocol)}, {n_way} novel classes: %, mean ± 95 % interval over '
            f"{episodes} episodes</p>"
        )
        out.append(_table(head, [[(cell, "") for cell in row] for row in rows]))
    return out


def _gains(table: ResultTable, baseline: str) -> list[str]:
    metrics = [m for m in table.metrics if not m.endswith("_top5")]
    rows: dict[tuple[Any, ...], dict[str, tuple[str, str]]] = {}
    for metric in metrics:
        for result, gain in table.gains(baseline, metric):
            key = (result.protocol, result.n_way, result.n_shot, result.label, result.seed)
            mark = "" if not gain.excludes_zero else "gain" if gain.mean > 0 else "loss"
            rows.setdefault(key, {})[metric] = (gain.percent(signed=True), mark)
    if not rows:
        return []
    head = ["method", "protocol", "shots", *(title(m) for m in metrics)]
    body = [
        [(key[3], ""), (f"{key[0]}, {key[1]} novel", ""), (str(key[2]), "")]
        + [cells.get(m, ("", "")) for m in metrics]
        for key, cells in sorted(rows.items())
    ]
    return [
        f"<h2>Gain over {escape(baseline)}</h2>",
        '<p class="dim">Points, on the same episodes (paired 95 % interval); coloured where the interval '
        "excludes zero</p>",
        _table(head, body),
    ]


def _figures(folder: Path, notes: Sequence[str]) -> list[str]:
    order = list(_CAPTIONS)
    paths = {path.stem: path for path in sorted(folder.glob("*.png"))}
    paths |= {path.stem: path for path in sorted(folder.glob("*.svg"))}
    if not paths and not notes:
        return []

    def kind(stem: str) -> str | None:
        return next((name for name in order if stem.startswith(name)), None)

    def rank(stem: str) -> tuple[int, str]:
        found = kind(stem)
        return (order.index(found) if found is not None else len(order), stem)

    out = ["<h2>Plots</h2>", *(f'<p class="dim">{escape(note)}</p>' for note in notes)]
    for stem in sorted(paths, key=rank):
        path = paths[stem]
        form = "svg+xml" if path.suffix == ".svg" else "png"
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        caption = escape(_CAPTIONS.get(kind(stem) or "", stem))
        picture = f'<img alt="{caption}" src="data:image/{form};base64,{data}">'
        out.append(f"<figure><div>{picture}</div><figcaption>{caption}</figcaption></figure>")
    return out


def _environment(record: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return " ".join(value)
        return (
            json.dumps(value) if isinstance(value, (dict, list)) else "none" if value is None else str(value)
        )

    rows = [[(key, ""), (text(value), "")] for key, value in record.items()]
    return _table([], rows, left=True)


def _table(head: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], *, left: bool = False) -> str:
    """Cells are pairs of text and CSS class."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td{_class(mark)}>{escape(cell)}</td>" for cell, mark in row) + "</tr>"
        for row in rows
    )
    inner = (f"<thead><tr>{top}</tr></thead>" if head else "") + f"<tbody>{body}</tbody>"
    return f'<div class="wide"><table{_class("left" if left else "")}>{inner}</table></div>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _by_protocol(table: ResultTable) -> dict[tuple[str, int], list[Any]]:
    groups: dict[tuple[str, int], list[Any]] = {}
    for result in table:
        groups.setdefault((result.protocol, result.n_way), []).append(result)
    return groups
