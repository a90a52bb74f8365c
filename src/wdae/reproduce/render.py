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
        out += [f"{mark}# {heading_of(table)}", "", *table_notes(table, record), ""]
        for view in text_tables(table):
            out += [f"**{view.title}**", "", replace(view, title="").markdown(), ""]
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
        f"{episodes}, the same for all rows on the same features.",
        "",
        "- Accuracies are in %, with 95 % intervals over episodes.",
        "- *Gain*: over the initial estimate, or over the row that a table names, in points, paired episode "
        "by episode; * where its interval excludes zero.",
        "- *Paper*: its figure, and in brackets its gain over its own initial estimate. Its features are "
        "others, so compare gains.",
        "- *Base*: base queries among the base classes. *Area*: under the curve of base against novel "
        "accuracy among all classes, as a constant is added to novel scores. So the offset of a balance does "
        "not count for it; its slope does.",
        "- ε is chosen on validation classes where no mark says otherwise.",
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


def heading_of(table: Mapping[str, Any]) -> str:
    """``Table 2: ...``."""
    return f"{table_name(table['number'])}: {table['title']}"


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
    has, lack = ([name for name, one in balanced.items() if one is is_so] for is_so in (True, False))
    which = "all rows" if not lack else "all rows but " + ", ".join(lack)
    which = which if len(lack) < len(has) else ", ".join(has)
    if which:
        text += f" Balanced, by a slope and an offset of novel scores found on other classes: {which}."
    if has and lack:
        text += " *All* and *area* of a balanced row are not to be compared with those of another."
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


def text_tables(table: Mapping[str, Any]) -> list[TextTable]:
    """For each metric accuracies, gains and the paper's figures; then rows over each other, ε and times."""
    known = table["metrics"]
    metrics = [m for m in known if "all" in known or not _is_ours(m)] or known
    views = [_metric_table(table, metric) for metric in metrics]
    return [*views, *_pairs_table(table), _costs_table(table)]


def _is_ours(metric: str) -> bool:
    """Whether the paper's tables have no such column."""
    return metric.startswith("base") or metric == "area"


def _metric_table(table: Mapping[str, Any], metric: str) -> TextTable:
    shots, rows = _rows(table)
    change = "change" if metric.startswith("base") else "gain"
    start, with_paper = rows.get(REFERENCE, {}), any(metric in line["paper"] for line in table["rows"])
    head = ["row"]
    for n_shot in shots:
        head += [f"{n_shot}-shot", change, *(["paper"] if with_paper else [])]
    cells = []
    for lines in rows.values():
        row = [_label(lines)]
        for n_shot in shots:
            line = lines.get(n_shot)
            value, gain = (None if line is None else line[key].get(metric) for key in ("metrics", "gains"))
            row.append("" if value is None else Estimate.from_dict(value).percent())
            row.append("" if gain is None else Estimate.from_dict(gain).starred())
            if with_paper:
                row.append("" if line is None else _papers(line, start.get(n_shot), metric))
        cells.append(row)
    notes = "† stands as it started: training gained nothing on validation classes."
    caption = notes if any(line.get("start_kept") for line in table["rows"]) else ""
    return TextTable(head, cells, title(metric).capitalize(), caption)


def _papers(line: Mapping[str, Any], start: Mapping[str, Any] | None, metric: str) -> str:
    """The paper's figure, and its gain over its own initial estimate where it has both."""
    paper = line["paper"].get(metric)
    if paper is None:
        return ""
    text = f"{100 * paper['mean']:.2f}"
    own = None if start is None or start is line else start["paper"].get(metric)
    return text if own is None else f"{text} ({100 * (paper['mean'] - own['mean']):+.2f})"


def _rows(table: Mapping[str, Any]) -> tuple[list[int], dict[str, dict[int, Mapping[str, Any]]]]:
    """The numbers of shots, and for each row its lines by them."""
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in table["rows"]:
        rows.setdefault(line["row"], {})[line["n_shot"]] = line
    return sorted({line["n_shot"] for line in table["rows"]}), rows


def _label(lines: Mapping[int, Mapping[str, Any]]) -> str:
    """What a row is called; † and at which shots where it stands as it started."""
    label = str(next(iter(lines.values()))["label"])
    started = [n_shot for n_shot, line in sorted(lines.items()) if line.get("start_kept")]
    if not started:
        return label
    return f"{label} †" if len(started) == len(lines) else f"{label} † ({', '.join(map(str, started))}-shot)"


def _pairs_table(table: Mapping[str, Any]) -> list[TextTable]:
    """Paired gains of rows over each other."""
    found: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for entry in table["pairs"]:
        own = found.setdefault((entry["label"], entry["over"]), {})
        for metric, gain in entry["gains"].items():
            own[metric, entry["n_shot"]] = Estimate.from_dict(gain).starred()
    if not found:
        return []
    columns = sorted({key for own in found.values() for key in own}, key=lambda key: (key[0] != "novel", key))
    head = ["row", "over", *(f"{title(metric)}, {n_shot}-shot" for metric, n_shot in columns)]
    rows = [[*pair, *(own.get(key, "") for key in columns)] for pair, own in found.items()]
    return [TextTable(head, rows, "Rows over each other, paired", left=("row", "over"))]


def _costs_table(table: Mapping[str, Any]) -> TextTable:
    shots, rows = _rows(table)
    head = ["row", *(f"ε, {n_shot}-shot" for n_shot in shots), "training, s", "measuring, s"]
    cells = []
    for lines in rows.values():
        first = next(iter(lines.values()))
        steps = [_step(lines[n_shot]) if n_shot in lines else "" for n_shot in shots]
        seconds = [f"{first[f'{what}_seconds'] or 0:.0f}" for what in ("training", "measuring")]
        cells.append([first["label"], *steps, *seconds])
    return TextTable(
        head, cells, "ε, and seconds of training (0: nothing, or another row's network) and of all measuring"
    )


def _step(line: Mapping[str, Any]) -> str:
    return "" if line["step"] is None else f"{line['step']:.2g}{_GIVEN.get(line['step_origin'], '‡')}"


def not_run(record: Mapping[str, Any]) -> list[str]:
    """The rows that were left out, by reason."""
    reasons: dict[str, list[str]] = {}
    for entry in record["not_run"]:
        reasons.setdefault(entry["why"], []).append(entry["label"])
    if not reasons:
        return []
    return ["Not run:", "", *(f"- {'; '.join(labels)}: {why}" for why, labels in reasons.items()), ""]
