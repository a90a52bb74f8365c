"""A reproduction in its run folder: features, rows, tables, plots."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wdae.config import dump, find_recipe
from wdae.errors import MissingExtraError, RecipeError, RunError, nearest
from wdae.reproduce.benchmarks import REFERENCE, Benchmark, Role, Row, Table
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.plan import RowPlan, row_recipe
from wdae.reproduce.plots import draw
from wdae.reproduce.record import (
    FORMAT,
    VERSION,
    class_records,
    curve_records,
    table_record,
    trade_off_records,
)
from wdae.reproduce.render import markdown, table_name
from wdae.reproduce.roles import RoleBank, needed_roles, open_role, why_missing
from wdae.reproduce.rows import Measured, refuse_other_settings, run_row
from wdae.runs.run import RECIPE, Run, exclusively
from wdae.runtime.device import pick_device
from wdae.storage.files import write_text
from wdae.storage.records import read_json, write_json

RESULTS, PAGE, BENCHMARK = "results.json", "results.md", "benchmark.json"


def chosen_rows(benchmark: Benchmark, recipe: ReproduceRecipe) -> tuple[list[Row], list[dict[str, str]]]:
    """The rows to run, the reference first, and those left out with the reason."""
    words = [word for part in recipe.rows for word in part.split(",") if word]
    known = [row.name for row in benchmark.rows]
    for word in words:
        if word not in (*known, "all"):
            raise RecipeError(f"{benchmark.title} has no row {word!r}{nearest(word, known)}")
    rows, left_out = [], []
    for row in benchmark.rows:
        asked = "all" in words or row.name in words or row.name == REFERENCE
        there = row.name == REFERENCE or find_recipe(benchmark.name, row.name) is not None
        if asked and there:
            rows.append(row)
        elif asked and row.name in words:
            raise RecipeError(f"the row {row.name} has no recipe in recipes/{benchmark.name}")
        elif not row.optional or there:
            left_out.append({"row": row.name, "label": row.label, "why": "not asked for (--rows)"})
    return rows, left_out


def open_run(
    benchmark: Benchmark, recipe: ReproduceRecipe, output: Path, *, resume: bool = False, force: bool = False
) -> tuple[Run, ReproduceRecipe]:
    """The run and the recipe to work by: with ``resume``, the run's own, changed by what is given anew."""
    if resume:
        run = Run.resume(output)
        before = read_json(run.path / BENCHMARK) if (run.path / BENCHMARK).is_file() else None
        if before != benchmark.name:
            raise RunError(f"{output} holds a run of {before or 'another command'}, not of {benchmark.name}")
        given = {key: getattr(recipe, key) for key in recipe.model_fields_set}
        recipe = run.recipe(ReproduceRecipe).model_copy(update=given)
        chosen_rows(benchmark, recipe)
        return run, recipe
    chosen_rows(benchmark, recipe)  # refused before anything is written
    run = Run.create(output, recipe, seed=recipe.seed, force=force)
    write_json(run.path / BENCHMARK, benchmark.name)
    return run, recipe


@exclusively
def reproduce(run: Run, benchmark: Benchmark, recipe: ReproduceRecipe) -> dict[str, Any]:
    """Run every row that can be run and is not finished; write tables and plots; return the record."""
    began = time.perf_counter()
    rows, left_out = chosen_rows(benchmark, recipe)
    wanted = [row.name for row in rows]
    missing = {role: why for role in needed_roles(benchmark, wanted) if (why := why_missing(recipe, role))}
    available = [role for role in needed_roles(benchmark, wanted) if role not in missing]
    if not available:
        raise RecipeError(
            f"nothing to reproduce {benchmark.title} from: give --data (pictures), --bank (features of every "
            "base picture's model), --held-out-bank or --trainval-bank"
        )
    placed = [(table, next((r for r in table.roles if r in available), None)) for table in benchmark.tables]
    banks: dict[Role, RoleBank] = {}
    for role in dict.fromkeys(role for _, role in placed if role is not None):
        banks[role] = open_role(run, benchmark, recipe, role)
    try:
        finished = _run_rows(run, benchmark, recipe, rows, placed, banks)
    finally:
        seconds = _seconds(run, time.perf_counter() - began)  # an interrupted call counts too
    for table in (table for table, role in placed if role is None):
        why = f"{table_name(table.number)}: {missing.get(table.roles[0], 'not asked for')}"
        for row in rows[1:]:
            if row.name in table.rows:
                left_out.append({"row": row.name, "label": row.label, "why": why})
    record = _record(run, benchmark, recipe, placed, banks, finished, left_out)
    record["seconds"] = seconds
    try:
        record["plots"] = [path.name for path in draw(record, run.plots) if path.suffix == ".png"]
    except MissingExtraError as error:
        record["plots_missing"] = str(error)
    write_json(run.path / RESULTS, record)
    write_text(run.path / PAGE, markdown(record))
    return record


def _run_rows(
    run: Run,
    benchmark: Benchmark,
    recipe: ReproduceRecipe,
    rows: Sequence[Row],
    placed: Sequence[tuple[Table, Role | None]],
    banks: dict[Role, RoleBank],
) -> dict[tuple[Role, str], Measured]:
    """Every row on every bank that a table wants it on; settings are compared before anything runs."""
    finished: dict[tuple[Role, str], Measured] = {}
    jobs = [
        (role, row)
        for role in banks
        for row in rows
        if any(role == at and row.name in table.rows for table, at in placed)
    ]
    jobs.sort(key=lambda job: not job[1].curves)  # the methods themselves first, then what varies them
    for role, row in jobs:
        if row.steps_from is None:  # ε of the others is known later
            plan = _plan(benchmark, recipe, role, row, banks[role], finished)
            refuse_other_settings(_folder(run, role, row), plan)
    write_text(run.path / RECIPE, dump(recipe))  # what the run is from now on
    for role, row in jobs:
        plan = _plan(benchmark, recipe, role, row, banks[role], finished)
        finished[role, row.name] = run_row(_folder(run, role, row), plan, banks[role].bank)
    return finished


def _folder(run: Run, role: Role, row: Row) -> Path:
    return run.path / "rows" / role / row.name


def _plan(
    benchmark: Benchmark,
    recipe: ReproduceRecipe,
    role: Role,
    row: Row,
    bank: RoleBank,
    finished: dict[tuple[Role, str], Measured],
) -> RowPlan:
    file = None if row.name == REFERENCE else find_recipe(benchmark.name, row.name)
    plan = RowPlan(benchmark, row, role, None, recipe, bank.digest)
    if file is None:
        return plan
    lender = next((m for (_, name), m in finished.items() if name == row.steps_from), None)
    steps = lender.record.get("steps") if lender is not None else None
    lent = None if steps is None else {int(k): float(v) for k, v in steps.items()}
    own = row_recipe(file, plan, lent)
    return RowPlan(
        benchmark, row, role, own, recipe, bank.digest, f"the row {row.steps_from}" if lent else None
    )


def _says_more(
    benchmark: Benchmark, table: Table, role: Role, finished: dict[tuple[Role, str], Measured]
) -> bool:
    """Whether a table of ours holds a row that stands in none of the paper's."""
    papers = {name for other in benchmark.tables if other.number is not None for name in other.rows}
    return table.number is not None or any((role, name) in finished for name in set(table.rows) - papers)


def _record(
    run: Run,
    benchmark: Benchmark,
    recipe: ReproduceRecipe,
    placed: Sequence[tuple[Table, Role | None]],
    banks: dict[Role, RoleBank],
    finished: dict[tuple[Role, str], Measured],
    left_out: list[dict[str, str]],
) -> dict[str, Any]:
    shots, episodes = recipe.shots or benchmark.shots, recipe.episodes or benchmark.episodes
    environment = run.environment()
    if pick_device(recipe.device).type == "cpu":
        environment["gpu"] = None
    kept = ("wdae", "commit", "python", "torch", "platform", "cpu", "cores", "gpu")
    role: Role = "held-out" if "held-out" in banks else next(iter(banks))
    curves: dict[str, Any] = {
        "role": role,
        "shots": curve_records(role, finished, "_top5" if benchmark.top5 else ""),
        "trade_off": trade_off_records(role, finished, shots),
        "classes": class_records(role, finished, shots[0], banks[role]),
        "class_shots": shots[0],
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": benchmark.name,
        "title": benchmark.title,
        "protocol": benchmark.protocol,
        "command": command(benchmark, recipe),
        "episodes": episodes,
        "ways": recipe.ways if benchmark.protocol == "few-way" else None,
        "queries": recipe.queries if benchmark.protocol == "few-way" else None,
        "seed": recipe.seed,
        "partial": recipe.allow_missing,
        "changes": {"stage1": list(recipe.stage1), "stage2": list(recipe.stage2)},
        "environment": {key: environment.get(key) for key in kept},
        "banks": {role: bank.describe() for role, bank in banks.items()},
        "tables": [
            table_record(benchmark, table, role, finished, shots, episodes)
            for table, role in placed
            if role is not None and _says_more(benchmark, table, role, finished)
        ],
        "not_run": left_out,
        "curves": curves,
    }


def command(benchmark: Benchmark, recipe: ReproduceRecipe) -> str:
    """The command that gives this, places of files left open."""
    words = ["wdae", "reproduce", benchmark.name]
    for key in sorted(recipe.model_fields_set):
        value, name = getattr(recipe, key), f"--{key.replace('_', '-')}"
        if value == type(recipe).model_fields[key].default or key in ("device", "stage1_recipe"):
            continue
        if key in ("data", "bank", "backbone") or key.endswith(("_bank", "_backbone")):
            value = "DIR" if key == "data" else key.upper()
        values = [] if value is True else value if isinstance(value, tuple) else [value]
        words += [name, *(shlex.quote(str(one)) for one in values)]
    return " ".join([*words, "-o", "RUN"])


def _seconds(run: Run, now: float) -> float:
    """Time of all calls that added to the run together."""
    path = run.path / "seconds.json"
    total = now + (float(read_json(path)) if path.is_file() else 0.0)
    write_json(path, total)
    return total
