"""Finished rows as one record: what ``results.json`` holds, figures in fractions, gains paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wdae.evaluation.paper import reported
from wdae.evaluation.results import Estimate, Result, paired
from wdae.methods.calibration import step_for
from wdae.reproduce.benchmarks import REFERENCE, Benchmark, Role, Table
from wdae.reproduce.details import base_distances
from wdae.reproduce.roles import RoleBank
from wdae.reproduce.rows import Measured

FORMAT, VERSION = "wdae-reproduction", 1
Rows = Mapping[tuple[Role, str], Measured]
_PAIRS = (
    ("wdae-gnn", "wdae-mlp"),
    ("wdae-gnn", "initial-estimate-balanced"),
    ("wdae-gnn", "lwof"),
    ("wdae-gnn", "lwof-balanced"),
    ("wdae-gnn-paper", "wdae-mlp-paper"),
    ("wdae-gnn-paper", "lwof"),
    ("wdae-gnn-plus", "wdae-gnn"),
    ("wdae-gnn-plus", "wdae-gnn-plus-no-denoiser"),
    ("wdae-gnn-plus", "wdae-gnn-plus-no-neighbours"),
    ("wdae-gnn-trainval", "wdae-mlp-trainval"),
)
_SHOWN = ("novel", "base", "all", "all_prior", "harmonic")
_AREA = "area"


def table_record(
    benchmark: Benchmark, table: Table, role: Role, rows: Rows, shots: Sequence[int], episodes: int
) -> dict[str, Any]:
    """One table: a record a row and number of shots."""
    suffix = "_top5" if benchmark.top5 else ""
    lines = []
    for n_shot in shots:
        first = rows.get((role, table.reference)) or rows.get((role, REFERENCE))
        reference = None if first is None else first.result(n_shot, episodes)
        for name in table.rows:
            measured = rows.get((role, name))
            result = None if measured is None else measured.result(n_shot, episodes)
            if measured is None or result is None:
                continue
            shown = [m + suffix for m in _SHOWN if m + suffix in result.metrics]
            shown += [_AREA] if _AREA in result.metrics else []
            if table.metrics == ("novel",) and role != "held-out":
                shown = [m for m in shown if m in ("novel", "base")]
            lines.append(_line(benchmark, table, measured, result, reference, shown))
    return {
        "number": table.number,
        "title": table.title,
        "role": role,
        "metrics": [m for m in (*table.metrics, *_also(suffix)) if _measured(lines, m)],
        "rows": lines,
        "reference": table.reference if (role, table.reference) in rows else REFERENCE,
        "pairs": _pairs(table, role, rows, shots, episodes, table.metrics),
    }


def _pairs(
    table: Table, role: Role, rows: Rows, shots: Sequence[int], episodes: int, metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Paired gains of rows over each other that the order of methods rests on."""
    records = []
    for name, other in _PAIRS:
        a, b = rows.get((role, name)), rows.get((role, other))
        if a is None or b is None or not {name, other} <= set(table.rows):
            continue
        for n_shot in shots:
            one, two = a.result(n_shot, episodes), b.result(n_shot, episodes)
            if one is not None and two is not None:
                gains = {m: paired(one, two, m).to_dict() for m in metrics if m in one.metrics}
                entry = {"row": name, "label": a.row.label, "over": b.row.label, "n_shot": n_shot}
                records.append(entry | {"gains": gains})
    return records


def _line(
    benchmark: Benchmark,
    table: Table,
    measured: Measured,
    result: Result,
    reference: Result | None,
    shown: Sequence[str],
) -> dict[str, Any]:
    row, record = measured.row, measured.record
    paper: dict[str, dict[str, Any]] = {}
    gains = {}
    for metric in shown:
        figure = None
        if table.number is not None:
            figure = reported(benchmark.name, table.number, row.paper or row.name, metric, result.n_shot)
        if figure is not None and row.name not in table.ours:
            spread = None if figure[1] is None else figure[1] / 100
            paper[metric] = {"mean": figure[0] / 100, "ci95": spread}
        if reference is not None and result.method != reference.method and metric in reference.metrics:
            gains[metric] = paired(result, reference, metric).to_dict()
    steps = record.get("steps")
    return {
        "row": row.name,
        "label": row.label,
        "n_shot": result.n_shot,
        "n_way": result.n_way,
        "n_episodes": result.n_episodes,
        "bank_digest": result.bank_digest,
        "metrics": {metric: result.metrics[metric].to_dict() for metric in shown},
        "paper": paper,
        "difference": {m: result.metrics[m].mean - paper[m]["mean"] for m in paper},
        "gains": gains,
        "step": None if not steps else step_for(result.n_shot, {int(k): v for k, v in steps.items()}),
        "step_origin": record.get("step_origin"),
        "balanced": record.get("balanced", False),
        **({"start_kept": True} if result.info.get("start_kept") else {}),
        "parameters": record.get("parameters"),
        "training_seconds": record.get("training_seconds"),
        "measuring_seconds": record.get("measuring_seconds"),
    }


def _also(suffix: str) -> list[str]:
    """Columns of ours alone: base accuracy, in the all-way protocol all with a prior, and the area."""
    return ["base" + suffix, *(["all_prior" + suffix] if suffix else []), _AREA]


def _measured(lines: Sequence[Mapping[str, Any]], metric: str) -> bool:
    return any(metric in line["metrics"] for line in lines)


def curve_records(role: Role, rows: Rows, suffix: str = "") -> list[dict[str, Any]]:
    """Accuracy against shots: for each row of the plots and number of shots, its figures."""
    records = []
    for (at, name), measured in rows.items():
        if at != role or not measured.row.curves:
            continue
        for result in sorted(measured.table, key=lambda r: r.n_shot):
            shown = {m: result.metrics[m + suffix] for m in _SHOWN if m + suffix in result.metrics}
            entry = {"row": name, "label": measured.row.label, "n_shot": result.n_shot}
            entry |= {"n_episodes": result.n_episodes, "metrics": {m: e.to_dict() for m, e in shown.items()}}
            records.append(entry)
    return records


def trade_off_records(role: Role, rows: Rows, shots: Sequence[int]) -> list[dict[str, Any]]:
    """Accuracies of novel and base queries among all classes as novel scores are raised or lowered."""
    records = []
    for (at, name), measured in rows.items():
        for n_shot in shots if at == role else ():
            details = measured.details(n_shot)
            if details is None or not len(details.offsets):
                continue
            columns = {key: _rounded(getattr(details, key)) for key in ("offsets", "novel", "base")}
            records.append({"row": name, "label": measured.row.label, "n_shot": n_shot, **columns})
    return records


def class_records(role: Role, rows: Rows, n_shot: int, bank: RoleBank) -> list[dict[str, Any]]:
    """Gain of the GNN over the MLP for each novel class, with the class's distance to the base classes."""
    pair = [rows.get((role, name)) for name in ("wdae-gnn", "wdae-mlp")]
    found = [measured.details(n_shot) for measured in pair if measured is not None]
    details = [one for one in found if one is not None]
    if len(details) < 2 or not torch.equal(details[0].classes, details[1].classes):
        return []
    classes, gain = details[0].classes.flatten(), (details[0].right - details[1].right).flatten()
    records = []
    for index, (name, distance) in enumerate(base_distances(bank.bank).items()):
        own = gain[classes == index]
        if len(own):
            records.append({"class": name, "distance": distance, "gain": Estimate.of(own.numpy()).to_dict()})
    return sorted(records, key=lambda record: record["distance"])


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
