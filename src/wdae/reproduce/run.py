"""A reproduction in its run folder: features, rows, tables, plots."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wdae.config import dump, find_recipe
from wdae.config.shipped import EMBEDDED
from wdae.data.remote import is_remote
from wdae.errors import DataError, MissingExtraError, RecipeError, RunError, nearest
from wdae.printing import say
from wdae.reproduce.benchmarks import REFERENCE, Benchmark, Role, Row, Table
from wdae.reproduce.config import ROLES, ReproduceRecipe
from wdae.reproduce.plan import RowPlan, row_recipe, split_held_out
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
from wdae.reproduce.roles import RoleBank, expected_cost, needed_roles, open_role, why_missing
from wdae.reproduce.rows import Measured, refuse_other_settings, run_row, same_training
from wdae.runs.run import RECIPE, Run, exclusively
from wdae.runtime.device import pick_device
from wdae.stage2.run import CHECKPOINT
from wdae.storage.files import write_text
from wdae.storage.records import read_json, read_number, write_json
from wdae.storage.trust import refuse_unnamed

_PLACES = tuple(f"{role}{kind}" for role in ROLES for kind in ("bank", "backbone"))
_NAMED = ("data", *_PLACES, "stage1", "stage1_recipe")
RESULTS, PAGE, BENCHMARK = "results.json", "results.md", "benchmark.json"


def chosen_rows(benchmark: Benchmark, recipe: ReproduceRecipe) -> tuple[list[Row], list[dict[str, str]]]:
    """The rows to run, the reference first, and those left out with the reason."""
    words = [word for part in recipe.rows for word in part.split(",") if word]
    rivals = {row.name for row in benchmark.rivals}
    known = [row.name for row in (*benchmark.rows, *benchmark.rivals)]
    for word in words:
        if word not in (*known, "all", "rivals"):
            raise RecipeError(f"{benchmark.title} has no row {word!r}{nearest(word, known)}")
    rows, left_out = [], []
    for row in (*benchmark.rows, *benchmark.rivals):
        group = "rivals" if row.name in rivals else "all"
        asked = group in words or row.name in words or row.name == REFERENCE
        there = row.name == REFERENCE or find_recipe(benchmark.name, row.name) is not None
        if asked and there:
            rows.append(row)
        elif asked and row.name in words:
            raise RecipeError(f"the row {row.name} has no recipe in recipes/{benchmark.name}")
        elif group == "all" and (not row.optional or there):
            left_out.append({"row": row.name, "label": row.label, "why": "not asked for (--rows)"})
    return rows, left_out


def open_run(
    benchmark: Benchmark, recipe: ReproduceRecipe, output: Path, *, resume: bool = False, force: bool = False
) -> tuple[Run, ReproduceRecipe]:
    """The run and the recipe to work by: with ``resume``, the run's own, changed by what is given anew.

    What it would open (pictures, banks, backbones, whatever stage 1's keys name) must be given anew.
    """
    if resume:
        run = Run.resume(output)
        before = read_json(run.path / BENCHMARK) if (run.path / BENCHMARK).is_file() else None
        if before != benchmark.name:
            raise RunError(f"{output} holds a run of {before or 'another command'}, not of {benchmark.name}")
        given = {key: getattr(recipe, key) for key in recipe.model_fields_set}
        begun = run.recipe(ReproduceRecipe)
        unnamed = {key: value for key in _NAMED if (value := getattr(begun, key)) and key not in given}
        words = ["wdae", "reproduce", benchmark.name, "-o", str(output), "--resume"]
        for key, value in unnamed.items():
            words += [f"--{key.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
        refuse_unnamed(unnamed, dict.fromkeys(unnamed), output, shlex.join(words))
        if "split_held_out" not in begun.model_fields_set:  # begun when all pictures served both ends
            begun = begun.model_copy(update={"split_held_out": False, "quick": True})
        recipe = begun.model_copy(update=given)
        chosen_rows(benchmark, recipe)
        return run, recipe
    chosen_rows(benchmark, recipe)  # refused before anything is written
    _refuse_lost_places(recipe)
    run = Run.create(output, recipe, seed=recipe.seed, force=force)
    write_json(run.path / BENCHMARK, benchmark.name)
    return run, recipe


def _refuse_lost_places(recipe: ReproduceRecipe) -> None:
    """Pictures, banks and backbones that are not there: their run would stand in the way of the next one."""
    for key in ("data", *_PLACES):
        if key.endswith("backbone") and recipe.data is None:
            continue  # it needs pictures first of all, which is said where that is found out
        path: Path | None = getattr(recipe, key)
        if path is not None and str(path) != EMBEDDED and not is_remote(path) and not path.exists():
            raise DataError(f"{path} does not exist; give what is there as --{key.replace('_', '-')}")


@exclusively
def reproduce(run: Run, benchmark: Benchmark, recipe: ReproduceRecipe) -> dict[str, Any]:
    """Run every row that can be run and is not finished; write tables and plots; return the record."""
    began = time.perf_counter()
    rows, left_out = chosen_rows(benchmark, recipe)
    wanted = [row.name for row in rows]
    needed = needed_roles(benchmark, wanted)
    missing = {role: why for role in needed if (why := why_missing(benchmark, recipe, role))}
    available = [role for role in needed if role not in missing]
    if not available:
        raise RecipeError(
            f"nothing to reproduce {benchmark.title} from: give --data (pictures), --bank (features of every "
            "base picture's model), --held-out-bank or --trainval-bank"
        )
    if cost := expected_cost(benchmark, recipe):
        say(cost)
    placed = {table: role for table in benchmark.tables for role in table.roles[::-1] if role in available}
    try:
        banks = {role: open_role(run, benchmark, recipe, role) for role in dict.fromkeys(placed.values())}
        job = _Job(run, benchmark, recipe, placed, banks)
        job.run_rows(rows)
    finally:
        seconds = _seconds(run, time.perf_counter() - began)  # an interrupted call counts too
    for table in (table for table in benchmark.tables if table not in placed):
        why = f"{table_name(table.number)}: {missing.get(table.roles[0], 'not asked for')}"
        named = [row for row in rows[1:] if row.name in table.rows]
        left_out += [{"row": row.name, "label": row.label, "why": why} for row in named]
    record = {**job.record(), "not_run": left_out, "curves": job.curves(), "seconds": seconds}
    try:
        record["plots"] = [path.name for path in draw(record, run.plots) if path.suffix == ".png"]
    except MissingExtraError as error:
        record["plots_missing"] = str(error)
    write_json(run.path / RESULTS, record)
    write_text(run.path / PAGE, markdown(record))
    return record


@dataclass(frozen=True)
class _Job:
    """A reproduction under way: which table is measured on which features, and the rows finished so far."""

    run: Run
    benchmark: Benchmark
    recipe: ReproduceRecipe
    placed: dict[Table, Role]
    banks: dict[Role, RoleBank]
    finished: dict[tuple[Role, str], Measured] = field(default_factory=dict)

    def run_rows(self, rows: Sequence[Row]) -> None:
        """Every row on every bank that a table wants it on; settings are compared before anything runs."""
        jobs = [
            (role, row)
            for role in self.banks
            for row in rows
            if any(role == at and row.name in table.rows for table, at in self.placed.items())
        ]
        jobs.sort(key=lambda job: not job[1].curves)  # the methods themselves first, then what varies them
        for role, row in jobs:
            if row.steps_from is None:  # ε of the others is known later
                refuse_other_settings(self._folder(role, row), self._plan(role, row))
        write_text(self.run.path / RECIPE, dump(self.recipe))  # what the run is from now on
        for role, row in jobs:
            plan, bank = self._plan(role, row), self.banks[role].bank
            twin = self._twin(role, plan)
            self.finished[role, row.name] = run_row(self._folder(role, row), plan, bank, twin)

    def _twin(self, role: Role, plan: RowPlan) -> Measured | None:
        """A finished row on the same features that trained the very same network."""
        for (at, _), measured in self.finished.items():
            if at == role and same_training(self._plan(at, measured.row).recipe, plan.recipe):
                return measured if (measured.folder / CHECKPOINT).is_file() else None
        return None

    def _folder(self, role: Role, row: Row) -> Path:
        return self.run.path / "rows" / role / row.name

    def _plan(self, role: Role, row: Row) -> RowPlan:
        plan = RowPlan(self.benchmark, row, role, None, self.recipe, self.banks[role].digest)
        file = None if row.name == REFERENCE else find_recipe(self.benchmark.name, row.name)
        if file is None:
            return plan
        lender = next((m for (_, name), m in self.finished.items() if name == row.steps_from), None)
        steps = lender.record.get("steps") if lender is not None else None
        lent = None if steps is None else {int(k): float(v) for k, v in steps.items()}
        origin = f"the row {row.steps_from}" if lent else None
        return replace(plan, recipe=row_recipe(file, plan, lent), lender=origin)

    def _says_more(self, table: Table, role: Role) -> bool:
        """Whether a table holds a row beside the reference and, if it is ours, one that no other has."""
        papers = {name for other in self.benchmark.tables if other.number is not None for name in other.rows}
        own = set(table.rows) - papers
        alone = len({name for _, name in self.finished}) == 1  # nothing but the reference
        if not any((role, name) in self.finished for name in table.rows if alone or name != REFERENCE):
            return False
        return table.number is not None or any((role, name) in self.finished for name in own)

    def curves(self) -> dict[str, Any]:
        """What the plots show, on the features with held-out images where there are some."""
        role: Role = "held-out" if "held-out" in self.banks else next(iter(self.banks))
        shots, finished = self.recipe.shots or self.benchmark.shots, self.finished
        return {
            "role": role,
            "shots": curve_records(role, finished, "_top5" if self.benchmark.top5 else ""),
            "trade_off": trade_off_records(role, finished, shots),
            "classes": class_records(role, finished, shots[0], self.banks[role]),
            "class_shots": shots[0],
        }

    def record(self) -> dict[str, Any]:
        """The tables, and how they came about."""
        recipe, benchmark = self.recipe, self.benchmark
        shots, episodes = recipe.shots or benchmark.shots, recipe.episodes or benchmark.episodes
        environment = self.run.environment()
        if pick_device(recipe.device).type == "cpu":
            environment["gpu"] = None
        kept = ("wdae", "commit", "python", "torch", "platform", "cpu", "cores", "gpu")
        few_way = benchmark.protocol == "few-way"
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": benchmark.name,
            "title": benchmark.title,
            "protocol": benchmark.protocol,
            "command": command(benchmark, recipe),
            "episodes": episodes,
            "ways": recipe.ways if few_way else None,
            "queries": recipe.queries if few_way else None,
            "seed": recipe.seed,
            "split_held_out": split_held_out(benchmark, recipe),
            "partial": recipe.allow_missing,
            "changes": {"stage1": list(recipe.stage1), "stage2": list(recipe.stage2)},
            "environment": {key: environment.get(key) for key in kept},
            "banks": {role: bank.describe() for role, bank in self.banks.items()},
            "methods": [self._method(role, measured) for (role, _), measured in self.finished.items()],
            "tables": [
                table_record(benchmark, table, role, self.finished, shots, episodes)
                for table, role in self.placed.items()
                if self._says_more(table, role)
            ],
        }

    def _method(self, role: Role, measured: Measured) -> dict[str, Any]:
        """What a row's method is: its recipe, what was chosen and fitted, a digest of its weights."""
        recipe = self._plan(role, measured.row).recipe
        return {
            "row": measured.row.name,
            "role": role,
            "recipe": None if recipe is None else recipe.model_dump(mode="json"),
            "found": measured.record.get("found"),
            "weights": measured.record.get("weights"),
        }


def command(benchmark: Benchmark, recipe: ReproduceRecipe) -> str:
    """The command that gives this, places of files left open."""
    words = ["wdae", "reproduce", benchmark.name]
    for key in sorted(recipe.model_fields_set):
        value, name = getattr(recipe, key), f"--{key.replace('_', '-')}"
        if value == type(recipe).model_fields[key].default or key in ("device", "stage1_recipe"):
            continue
        if key in ("data", *_PLACES):
            value = "DIR" if key == "data" else EMBEDDED if str(value) == EMBEDDED else key.upper()
        values = [] if value is True else value if isinstance(value, tuple) else [value]
        words += [name, *(shlex.quote(str(one)) for one in values)]
    return " ".join([*words, "-o", "RUN"])


def _seconds(run: Run, now: float) -> float:
    """Time of all calls that added to the run together."""
    path = run.path / "seconds.json"
    total = now + read_number(path)
    write_json(path, total)
    return total
