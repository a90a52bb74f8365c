"""The record of a reproduction as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wdae.evaluation.results import Estimate
from wdae.evaluation.table import title
from wdae.evaluation.text_table import TextTable
from wdae.reproduce.benchmarks import REFERENCE

_ROLES = {
    "whole": "a model of all pictures of the base classes",
    "held-out": "a model with pictures of each base class held out",
    "trainval": "a model of the base and validation classes",
}

_GIVEN = {"validation classes": "", "the recipe": "§"}  # a mark where ε was not chosen here


def markdown(record: Mapping[str, Any], heading: int = 1) -> str:
    """The whole page: tables, what was not run, plots, where and how long."""
    mark = "#" * heading
    out = [f"{mark} {record['title']}", "", *introduction(record), ""]
    for table in record["tables"]:
        view = text_table(table)
        out += [f"{mark}# {view.title}", "", *table_notes(table, record), ""]
        out += [replace(view, title="").markdown(), "", *pairs(table)]
    out += not_run(record)
    return "\n".join(out).rstrip() + "\n"


def introduction(record: Mapping[str, Any]) -> list[str]:
    """How the figures came about."""
    environment = record["environment"]
    where = environment.get("gpu") or f"{environment.get('cpu')}, {environment.get('cores')} cores"
    episodes = f"{record['episodes']:,} episodes"
    if record["protocol"] == "few-way":
        episodes += f" of {record['ways']} novel classes and {record['queries']} queries a class"
    else:
        episodes += " of all novel classes at once"
    lines = [
        f"`{record['command']}`",
        "",
        f"{where}, torch {environment.get('torch')}, {commit(environment)}; "
        f"{record['seconds'] / 60:.1f} minutes in all. "
        f"{episodes}, the same for all rows on the same features; accuracies in % with 95 % intervals. "
        "Difference: ours minus the paper's. Gain: over the initial estimate, or over the row that a table "
        "names, on the same features, paired episode by episode, * where its interval excludes zero. "
        "ε is chosen on validation classes where "
        "no mark says otherwise. Times are seconds: of training, and of all measuring of the row.",
    ]
    changes = [*record["changes"]["stage1"], *record["changes"]["stage2"]]
    if changes:
        lines += ["", f"Changed against the recipes: {', '.join(f'`{change}`' for change in changes)}."]
    if record["partial"]:
        lines += ["", f"Classes of {record['title']} may be missing: these are then not its figures."]
    return lines


def commit(environment: Mapping[str, Any]) -> str:
    """The commit that a run is of, as far as it was kept."""
    name = environment.get("commit")
    if name is None:
        return "commit not kept"
    return f"commit {name[:12]}" + (" with changes" if name.endswith("+") else "")


def table_name(number: int | None) -> str:
    """``Table 2``, or ``Ours``."""
    return "Ours" if number is None else f"Table {number}"


def table_notes(table: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Which features a table is measured on."""
    bank = record["banks"][table["role"]]
    text = f"Features of {_ROLES[table['role']]} ({bank['origin']}"
    made = {k: v for k, v in bank["seconds"].items() if v}
    if made:
        text += "; " + ", ".join(f"{name} {value:,.0f} s" for name, value in made.items())
    text += f"): {_backbones(bank)}, {bank['dim']} dimensions."
    held_out = bank["images"]["base-held-out"]
    if table["role"] == "whole" and held_out and record["protocol"] == "few-way":
        text += f" This bank holds {held_out:,} base pictures out, which the paper's model learned from."
    if table["role"] == "held-out" and "all" not in table["metrics"]:
        text += " The paper's model learned from the held-out pictures too: no such features were given."
    origins = {
        line["step_origin"] for line in table["rows"] if line["step"] is not None and line["step_origin"]
    }
    marks: dict[str, list[str]] = {}
    for origin in sorted(origins):
        marks.setdefault(_GIVEN.get(origin, "‡"), []).append(origin)
    for mark, those in marks.items():
        text += f" {mark} ε from {', '.join(those)}." if mark else ""
    if "all" in table["metrics"]:
        text += _balance_notes(table, record)
    return [text]


def _balance_notes(table: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Which rows are balanced, over which row gains are, and what base pictures were fitted on."""
    text = ""
    balanced = {line["label"]: line["balanced"] for line in table["rows"]}
    which = "all rows" if all(balanced.values()) else ", ".join(name for name, has in balanced.items() if has)
    if which:
        text += f" Novel scores are balanced against base scores, as found on other classes: {which}."
    first = next((line for line in table["rows"] if line["row"] == table.get("reference")), None)
    if first is not None and first["row"] != REFERENCE:
        text += f" Gains are over the row {first['label']}."
    if record.get("split_held_out"):
        text += " ε and balance were fitted on one half of the held-out base pictures; the other half are"
        text += " the base queries."
    elif which:
        text += " The held-out base pictures that ε and balance were fitted on are the base queries, too."
    return text


def _backbones(bank: Mapping[str, Any]) -> str:
    """Of which backbones a bank's features are, and of how many views of a picture."""
    crops = bank.get("crops") or [0] * len(bank["backbones"])  # records of before there were any
    views = zip(bank["backbones"], bank["flip_average"], bank["sizes"], crops, strict=True)
    each = [(name or "backbone not named") + _views(*seen) for name, *seen in views]
    return each[0] if len(each) == 1 else "side by side: " + "; ".join(each) + "; together"


def _views(mirrored: bool, sizes: Sequence[int], crops: int) -> str:
    text = ", means over a picture and its mirror image" if mirrored else ""
    if len(sizes) > 1:
        text = text or ", means over a picture"
        text += f" at {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} px"
    if crops:
        text = f"{text or ', means over a picture'} and over {crops} random crops of it"
    return text


def text_table(table: Mapping[str, Any]) -> TextTable:
    """A table in percent and points."""
    head, metrics = ["row", "shots"], table["metrics"]
    with_paper = {m for m in metrics if any(m in line["paper"] for line in table["rows"])}
    for metric in metrics:
        name = title(metric)
        head += [name, "paper", "difference"] if metric in with_paper else [name]
        head.append("change" if metric.startswith("base") else "gain")
    head += ["ε", "training, s", "measuring, s"]
    rows = [_cells(line, metrics, with_paper) for line in table["rows"]]
    return TextTable(head, rows, f"{table_name(table['number'])}: {table['title']}", sections="shots")


def _cells(line: Mapping[str, Any], metrics: Sequence[str], with_paper: set[str]) -> list[str]:
    row = [line["label"], str(line["n_shot"])]
    for metric in metrics:
        value, gain = line["metrics"].get(metric), line["gains"].get(metric)
        row.append("" if value is None else Estimate.from_dict(value).percent())
        if metric in with_paper:
            paper = line["paper"].get(metric)
            difference = line["difference"].get(metric)
            row.append("" if paper is None else f"{100 * paper['mean']:.2f}")
            row.append("" if difference is None else f"{100 * difference:+.2f}")
        row.append("" if gain is None else Estimate.from_dict(gain).starred())
    row.append("" if line["step"] is None else f"{line['step']:.2g}{_GIVEN.get(line['step_origin'], '‡')}")
    return [*row, f"{line['training_seconds'] or 0:.0f}", f"{line['measuring_seconds'] or 0:.0f}"]


def pairs(table: Mapping[str, Any]) -> list[str]:
    """Paired gains of rows over each other, a line a pair."""
    lines: dict[str, list[str]] = {}
    for entry in table["pairs"]:
        figures = lines.setdefault(f"{entry['label']} over {entry['over']}", [])
        for metric, gain in entry["gains"].items():
            figures.append(f"{entry['n_shot']}-shot {title(metric)} {Estimate.from_dict(gain).starred()}")
    return [
        line for pair, figures in lines.items() for line in (f"{pair}, paired: {', '.join(figures)}.", "")
    ]


def not_run(record: Mapping[str, Any]) -> list[str]:
    """The rows that were left out, by reason."""
    reasons: dict[str, list[str]] = {}
    for entry in record["not_run"]:
        reasons.setdefault(entry["why"], []).append(entry["label"])
    if not reasons:
        return []
    return ["Not run:", "", *(f"- {'; '.join(labels)}: {why}" for why, labels in reasons.items()), ""]
