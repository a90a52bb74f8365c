"""Records of results: what ``make_results.py`` keeps of run folders, and adds to what was kept before."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdae.evaluation.table import ResultTable
from wdae.reproduce.benchmarks import BENCHMARKS
from wdae.reproduce.record import FORMAT
from wdae.reproduce.render import commit
from wdae.runs.run import Run
from wdae.storage.records import read_json, write_json

JOINED = {
    "dc5812d93494733c272c6d40916b481e13ed66b4": "e23900677f002304ff603f0b6e6e3b9a914b7b27",
    "68e59a38f5293dee1251e9bd70d7d59091de2d2b": "62f10e50308f9d4ead985eb790e1100052c72098",
}
"""Commits that records name and the history lacks: before they were published they were joined with later
ones into the commit beside them."""
METRICS = ("novel", "base", "all", "harmonic", "area")
BASELINE = "initial-estimate"


def without_paths(value: Any) -> Any:
    """JSON values with ``DIR`` for each absolute path: where files lay on a machine is nobody's business."""
    if isinstance(value, Mapping):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(one) for one in value]
    return "DIR" if isinstance(value, str) and value.startswith(("/", "~")) else value


def refuse_unclean(run: Path, environment: Mapping[str, Any]) -> None:
    """Figures of documents come from a commit that anyone can check out; no other run is taken."""
    name = environment.get("commit")
    if name is None or name.endswith("+"):
        state = "no commit" if name is None else f"a checkout of {name[:12]} with changes"
        sys.exit(f"{run} was run from {state}; commit everything, run it again from there, and adopt that")


def of_commit(environment: Mapping[str, Any]) -> str:
    """The commit that a record is of, in words; where it was joined into another one, that too."""
    later = JOINED.get(environment.get("commit") or "")
    return commit(environment) + (
        f" (before publication joined with later ones into {later[:12]})" if later else ""
    )


def adopt(results: Path, run: Path, name: str | None = None, title: str | None = None) -> Path:
    """Keep the record of a reproduction."""
    record = read_json(Run.open(run).path / "results.json")
    if record.get("format") != FORMAT:
        sys.exit(f"{run} holds no reproduction")
    refuse_unclean(run, record["environment"])
    record |= {"name": name or record["name"], "title": title or record["title"]}
    out = results / f"{record['name']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    return out


def extend(results: Path, name: str, run: Path) -> Path:
    """Add what another run of the same benchmark has and the record lacks; what the record has stays."""
    path, more = results / f"{name}.json", read_json(Run.open(run).path / "results.json")
    refuse_unclean(run, more["environment"])
    record = read_json(path)
    for key in ("protocol", "episodes", "ways", "queries", "seed", "changes", "partial"):
        if record[key] != more[key]:
            sys.exit(f"{run} differs from {name} in {key}: {more[key]}, not {record[key]}")
    for role, bank in more["banks"].items():
        if record["banks"].get(role, {}).get("digest") != bank["digest"]:
            sys.exit(f"{run} has other features than {name} for the role {role}")
    seconds: dict[tuple[str, str], float] = {}
    tables = {(table["number"], table["title"]): table for table in record["tables"]}
    orders = {(table.number, table.title): table.rows for table in BENCHMARKS[more["name"]].tables}
    for table in more["tables"]:
        key = (table["number"], table["title"])
        ours, order = tables.get(key), orders[key]
        if ours is None:
            ours = {**table, "rows": [], "pairs": []}
            record["tables"].append(ours)
        if ours["role"] != table["role"]:
            continue
        if (over := table.get("reference", BASELINE)) != ours.get("reference", BASELINE):
            sys.exit(f"gains of {run} are over {over}, not {ours['reference']}; run that row there as well")
        known = {(line["row"], line["n_shot"]) for line in ours["rows"]}
        for line in table["rows"]:
            if (line["row"], line["n_shot"]) not in known:
                ours["rows"].append(line)
                seconds[table["role"], line["row"]] = line["training_seconds"] + line["measuring_seconds"]
        ours["rows"].sort(key=lambda line, order=order: (line["n_shot"], order.index(line["row"])))
        ours["pairs"] += _new_pairs(ours, table)
    added = {row for _, row in seconds}
    record["seconds"] += sum(seconds.values())
    known_methods = {(entry["role"], entry["row"]) for entry in record.setdefault("methods", [])}
    record["methods"] += [
        entry
        for entry in more.get("methods", ())
        if (entry["role"], entry["row"]) in {*seconds} - known_methods
    ]
    record["not_run"] = [entry for entry in record["not_run"] if entry["row"] not in added]
    write_json(path, record)
    return path


def _new_pairs(ours: dict[str, Any], more: dict[str, Any]) -> list[dict[str, Any]]:
    """Paired gains that a table lacks and another has; only where both rows stand alike in both."""
    figures = [{(r["label"], r["n_shot"]): r["metrics"] for r in table["rows"]} for table in (ours, more)]
    known = {(pair["label"], pair["over"], pair["n_shot"]) for pair in ours["pairs"]}
    return [
        pair
        for pair in more["pairs"]
        if (pair["label"], pair["over"], pair["n_shot"]) not in known
        and all(
            figures[0].get((label, pair["n_shot"])) == figures[1][label, pair["n_shot"]]
            for label in (pair["label"], pair["over"])
        )
    ]


def collect(results: Path, name: str, runs: list[Path], *, renew: bool = False) -> Path:
    """Keep the figures of several runs on the same episodes in one file, or put them in place of others."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    records = []
    if renew:
        before = read_json(results / f"{name}.json")
        rows = {(row["method"], row["n_shot"]): row for row in before["rows"]}
        records = [record for record in before["runs"] if record["run"] not in {path.name for path in runs}]
    for path in runs:
        table = ResultTable.load(Run.open(path).results)
        for result in table:
            there = rows.get((BASELINE, result.n_shot))
            if renew and there and any(result.episodes[k] != there[k] for k in ("seed", "n_episodes")):
                sys.exit(f"{path} has other episodes than {name}: its gains would not be on the same ones")
            if renew and result.method == BASELINE:
                continue
            metrics = {m: vars(result.metrics[m]) for m in METRICS if m in result.metrics}
            rows[result.method, result.n_shot] = {
                **{k: v for k, v in result.episodes.items() if v is not None},
                "method": result.method,
                "metrics": metrics,
                "info": dict(result.info),
                "gains": {},
            }
        for metric in METRICS:
            for result, gain in table.gains(BASELINE, metric):
                rows[result.method, result.n_shot]["gains"][metric] = vars(gain)
        environment = Run.open(path).environment()
        kept = ("wdae", "commit", "torch", "cpu", "cores", "gpu")
        for place in (environment, *environment.get("resumed", ())):
            refuse_unclean(path, place)
            record = {"run": path.name, **{key: place.get(key) for key in kept}}
            records += [record] if record not in records else []
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0] != BASELINE, key[0]))]
    out = results / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"name": name, "rows": ordered, "runs": records})
    return out
