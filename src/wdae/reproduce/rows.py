"""One row of a table on one bank: trained, measured, and kept so that it need not be run again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wdae.bank import FeatureBank
from wdae.errors import RunError
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.measure import measure
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.methods import WDAE, Method, is_learned, make
from wdae.methods.saved import load_method
from wdae.nn.space import powered
from wdae.parts import Part
from wdae.reproduce.benchmarks import REFERENCE, Role, Row
from wdae.reproduce.details import Details, measure_details
from wdae.reproduce.plan import RowPlan
from wdae.runs.progress import progress
from wdae.runs.run import Run
from wdae.runtime.device import pick_device, pick_dtype
from wdae.stage2.config import MetaRecipe
from wdae.stage2.run import CHECKPOINT, MODEL, train_method
from wdae.stage2.state import identity
from wdae.storage.files import sha256
from wdae.storage.records import Count, Info, Record, Text, read_json, read_number, read_record, write_json

# Settings are written first, the record last: a row that has one is finished.
SETTINGS, RECORD, CLOCK = "settings.json", "row.json", "clock.json"


@dataclass(frozen=True)
class Measured:
    """A finished row: its results (with per-episode values) and what it cost."""

    row: Row
    role: Role
    table: ResultTable
    record: Mapping[str, Any]
    folder: Path

    def result(self, n_shot: int, n_episodes: int) -> Result | None:
        """The result at a number of shots and of episodes."""
        found = (r for r in self.table if (r.n_shot, r.n_episodes) == (n_shot, n_episodes))
        return next(found, None)

    def details(self, n_shot: int) -> Details | None:
        """What the plots need, where it was measured."""
        path = _details_file(self.folder, n_shot)
        return Details.load(path) if path.is_file() else None


class _RowRecord(Record):
    """``row.json``: what a finished row cost and was set to."""

    row: Text
    role: Text
    training_seconds: float
    measuring_seconds: float
    parameters: Count
    step_origin: Text | None = None
    balanced: bool = False
    steps: dict[int, float] | None = None
    trained_as: Text | None = None
    found: Info | None = None
    weights: Text | None = None


def run_row(folder: Path, plan: RowPlan, bank: FeatureBank, twin: Measured | None = None) -> Measured:
    """Run a row in its folder, or read it where an earlier call has finished it.

    ``twin`` is a finished row of the same training: its network is taken, and is not trained again.
    """
    refuse_other_settings(folder, plan)
    record = None
    if (folder / RECORD).is_file():
        record = read_record(_RowRecord, folder / RECORD).model_dump(mode="json", exclude_unset=True)
    if record is None:
        device = pick_device(plan.options.device)
        method = _trained(folder, plan, bank, device, twin)
        began = time.perf_counter()
        tested = bank.half_of_held_out("test") if plan.split_held_out else bank
        _measure(folder, plan, method, tested, device)
        clock = _clock(folder)
        record = {
            "row": plan.row.name,
            "role": plan.role,
            "training_seconds": clock,
            "measuring_seconds": time.perf_counter() - began,
            "parameters": method.n_parameters(),
            "step_origin": plan.step_origin if isinstance(method, WDAE) else None,
            "balanced": getattr(method, "balance", None) is not None,
            "steps": {str(k): v for k, v in method.steps.items()} if isinstance(method, WDAE) else None,
            "found": _found(method, bank),
            **({"weights": sha256(folder / MODEL)} if (folder / MODEL).is_file() else {}),
            **({} if twin is None else {"trained_as": twin.row.name}),
        }
        write_json(folder / RECORD, record)
    assert record is not None
    return Measured(plan.row, plan.role, ResultTable.load(folder / "results"), record, folder)


def refuse_other_settings(folder: Path, plan: RowPlan) -> None:
    """A row that was run, or begun, with other settings is refused: rows of one table have the same."""
    if not (folder / SETTINGS).is_file():
        return
    was, now = _flat(read_json(folder / SETTINGS)), _flat(plan.settings())
    differing = [
        f"{key} was {was.get(key, 'not set')}, is {now.get(key, 'not set')}"
        for key in sorted({*was, *now})
        if was.get(key) != now.get(key)
    ]
    if differing:
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        state = "finished" if (folder / RECORD).is_file() else "begun"
        raise RunError(
            f"the row {plan.row.name} ({plan.role}) is {state} in {folder}, with other settings: "
            f"{'; '.join(differing[:4])}{more}. Give the settings it was run with, another folder with -o, "
            f"or remove {folder} to run the row again"
        )


def same_training(one: MetaRecipe | None, other: MetaRecipe | None) -> bool:
    """Whether two rows train the very same network and differ only in what follows."""
    if one is None or other is None:
        return False
    tested = [(r.space, r.evaluation.ways, r.evaluation.queries) for r in (one, other)]
    return identity(one) == identity(other) and tested[0] == tested[1]


def _trained(
    folder: Path, plan: RowPlan, bank: FeatureBank, device: torch.device, twin: Measured | None
) -> Method:
    """The row's method, trained now, further, or by an earlier call."""
    name = REFERENCE if plan.recipe is None else plan.recipe.method
    if plan.recipe is None or (name is not None and not is_learned(name)):
        (folder / "results").mkdir(parents=True, exist_ok=True)
        write_json(folder / SETTINGS, plan.settings())
        return make(name or REFERENCE, **({} if plan.recipe is None else plan.recipe.options))
    if not (folder / MODEL).is_file():
        run = Run.resume(folder) if folder.exists() else Run.create(folder, plan.recipe)
        write_json(folder / SETTINGS, plan.settings())
        if twin is not None and not (folder / CHECKPOINT).is_file():
            shutil.copyfile(twin.folder / CHECKPOINT, folder / CHECKPOINT)
        began, before = time.perf_counter(), _clock(folder)
        try:
            train_method(run, plan.recipe, bank, resume=True)
        finally:
            write_json(folder / CLOCK, before + time.perf_counter() - began)
    return load_method(folder / MODEL, device, pick_dtype(plan.recipe.precision, device), dim=bank.dim)


def _measure(folder: Path, plan: RowPlan, method: Method, bank: FeatureBank, device: torch.device) -> None:
    """Measure what is not measured yet."""
    method.name = plan.row.name
    there = {(r.n_shot, r.n_episodes, r.seed) for r in ResultTable.load(folder / "results")}
    todo = {k: n for k, n in plan.measured.items() if (k, n, plan.seed) not in there}
    options = plan.options
    with progress(sum(todo.values()), f"measuring {plan.row.name} ({plan.role})") as bar:
        for n_shot, n_episodes in todo.items():
            config = EvaluationConfig(
                protocol=plan.benchmark.protocol,
                ways=options.ways,
                queries=options.queries,
                episodes=n_episodes,
            )
            where: dict[str, Any] = {"device": device, "on_progress": bar.update}
            result = measure(
                method, bank, n_shot, config, seed=plan.seed, base_queries=plan.base_queries, **where
            )
            result.save(folder / "results")
    if plan.row.curves and plan.benchmark.protocol == "few-way":
        for n_shot in plan.shots:
            if _details_file(folder, n_shot).is_file():
                continue
            measure_details(
                method,
                bank,
                n_shot,
                n_way=options.ways,
                n_query=options.queries,
                n_episodes=plan.curve_episodes,
                seed=plan.seed,
                device=device,
            ).save(_details_file(folder, n_shot))


def _found(method: Method, bank: FeatureBank) -> dict[str, Any]:
    """What was chosen or fitted beside the weights: ε, slopes and offsets, and the space."""
    found = method.describe()
    space = method.space if isinstance(method, WDAE) else None
    if space is not None:
        mean = powered(bank.select(Part.BASE_TRAIN).features, space.power).mean(0)
        found["centre"] = round(float(space.centre.norm().cpu() / mean.norm()), 4)
    return found


def _details_file(folder: Path, n_shot: int) -> Path:
    return folder / f"details-{n_shot}shot.safetensors"


def _clock(folder: Path) -> float:
    """Seconds of training so far."""
    return read_number(folder / CLOCK)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: leaf
        for part, inner in value.items()
        for key, leaf in _flat(inner, f"{name}.{part}" if name else str(part)).items()
    }
