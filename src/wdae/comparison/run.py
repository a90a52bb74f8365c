"""Many methods on one bank: trained where they need it, measured on the same episodes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from wdae.bank import FeatureBank
from wdae.comparison.config import CompareRecipe
from wdae.comparison.entries import ComparisonEntry, entry, given_recipe, with_keys
from wdae.errors import ModelError
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.measure import with_options
from wdae.evaluation.protocol import few_way
from wdae.evaluation.results import Estimate, Result, file_name, file_stem, paired
from wdae.evaluation.table import ResultTable
from wdae.methods import WDAE, LearnedMethod, Method, find, names
from wdae.methods.base import base_classes
from wdae.methods.saved import load_method, save_method
from wdae.parts import Part
from wdae.runs.progress import Progress, progress
from wdae.runs.run import Run, exclusively
from wdae.runtime.device import pick_device
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.learner import build_method
from wdae.stage2.run import MODEL, train_method
from wdae.storage.records import Count, Record, read_record, write_json

_COST = "cost.json"  # written last: a method that has it is trained
_CHUNK = {"cuda": 512}  # episodes at once: some methods hold a graph for each query
M = TypeVar("M", bound=Method)


class _Cost(Record):
    """``cost.json``: what training a method took, and whether it gained anything."""

    parameters: Count
    start_kept: bool = False
    validation_gain: float = 0.0
    validation_gain_ci95: float | None = None
    training_seconds: float


def chosen_methods(recipe: CompareRecipe) -> list[ComparisonEntry]:
    """What a recipe asks for, the reference first; unknown names are refused, all names listed."""
    asked = [name for word in recipe.methods for name in (names() if word == "all" else [word])]
    entries = [entry(word) for word in dict.fromkeys((recipe.reference, *asked))]
    for one in entries:
        if recipe.metric in ("base", "all") and one.kind is not None and not one.kind.joint:
            raise ModelError(
                f"{one.word} scores novel classes only, so it has no {recipe.metric} accuracy; leave it out,"
                " or compare novel accuracy"
            )
        if one.kind is WDAE and one.name is not None and any("." not in key for key in one.options):
            raise ModelError(
                f"{one.word}: a denoiser takes keys of its recipe: {one.name}:denoiser.hidden=160,"
                "training.noise=0.05"
            )
        if one.name is not None and one.options:  # wrong ones are refused before anything is run
            with_keys(training_recipe(one.name, recipe), one) if one.learned else with_options(one.word)
    return entries


def training_recipe(name: str, recipe: CompareRecipe, n_shot: int | None = None) -> MetaRecipe:
    """How a comparison trains a learned method: its own defaults, the comparison's length.

    ``n_shot`` trains it for that number of shots alone, which is how the papers' tables were made.
    """
    kind = find(name)
    steps = recipe.steps * kind.training_length * (len(recipe.shots) if n_shot is None else 1)
    common: dict[str, Any] = {
        "steps": steps,
        "episodes_per_step": recipe.episodes_per_step,
        "validate_every": -(-steps // recipe.validations),
        "validation_episodes": recipe.validation_episodes,
        "patience": recipe.patience,
    }
    defaults = dict(kind.training_defaults)
    if n_shot is not None:
        defaults["shots"] = (n_shot,)
    if "n_fake" in defaults:  # methods that learn few-way episodes learn those they will be tested on
        defaults["n_fake"] = recipe.ways
    options = {"n_way": recipe.ways} if "n_way" in inspect.signature(kind).parameters else {}
    denoiser = {"denoiser": DenoiserConfig(kind=name.removeprefix("wdae-"))} if kind is WDAE else {}
    return MetaRecipe(
        name=name,
        method=None if kind is WDAE else name,
        seed=recipe.seed,
        device=recipe.device,
        precision=recipe.precision,
        compile=False,  # so few steps would not make up for it
        options=options,
        training=TrainingConfig(**(common | defaults)),
        evaluation=EvaluationConfig(
            shots=recipe.shots,
            ways=recipe.ways,
            queries=recipe.queries,
            step_episodes=recipe.validation_episodes,
            split_held_out=recipe.split_held_out,
        ),
        **denoiser,
    )


@exclusively
def run_comparison(run: Run, recipe: CompareRecipe, bank: FeatureBank) -> ResultTable:
    """Train and measure every method of a recipe; what an earlier call has finished is not run again."""
    chosen = chosen_methods(recipe)
    tested = bank.half_of_held_out("test") if recipe.split_held_out else bank
    for position, one in enumerate(chosen):
        missing = [k for k in recipe.shots if _finished(run, one.word, k, recipe) is None]
        if not missing:
            continue
        ready = {n_shot: _ready(run, one, n_shot, recipe, bank) for n_shot in missing}
        total = len(missing) * recipe.episodes
        with progress(total, f"measuring {one.word} ({position + 1} of {len(chosen)})") as bar:
            for n_shot, (method, cost) in ready.items():
                _measure(run, method, cost, n_shot, recipe, tested, bar)
    results = [_finished(run, one.word, k, recipe) for k in recipe.shots for one in chosen]
    return ResultTable(tuple(result for result in results if result is not None))


def _ready(
    run: Run, one: ComparisonEntry, n_shot: int, recipe: CompareRecipe, bank: FeatureBank
) -> tuple[Method, dict[str, Any]]:
    """A method to measure and what it cost, trained now or by an earlier call."""
    device = pick_device(recipe.device)
    if one.run is not None:
        method = load_method(one.run / MODEL, device, dim=bank.dim)
        method.name = one.word
        return method, {"parameters": method.n_parameters()}
    if not one.learned:
        return with_options(one.word), {"parameters": 0, "training_seconds": 0.0}
    by_shot = one.name is not None and "shots" in find(one.name).training_defaults  # others: once for any
    folder = run.path / "methods" / (file_name(one.word) + (f"-{n_shot}shot" if by_shot else ""))
    if not (folder / _COST).exists():
        _train(folder, one, n_shot if by_shot else None, recipe, bank)
    method = load_method(folder / MODEL, device, dim=bank.dim)
    method.name = one.word
    return method, read_record(_Cost, folder / _COST).model_dump(exclude_unset=True)


def _train(
    folder: Path, one: ComparisonEntry, n_shot: int | None, recipe: CompareRecipe, bank: FeatureBank
) -> None:
    """Train an entry in a folder of its own, for one number of shots or for any."""
    if one.name is None:
        training = given_recipe(one, recipe)
    else:
        training = with_keys(training_recipe(one.name, recipe, n_shot), one)
    part = Run.resume(folder) if folder.exists() else Run.create(folder, training, seed=recipe.seed)
    began = time.perf_counter()
    method = train_method(part, training, bank, resume=True)
    cost: dict[str, Any] = {"parameters": method.n_parameters()}
    if n_shot is not None and isinstance(method, LearnedMethod):
        cost |= _keep_if_better(folder / MODEL, method, n_shot, training, recipe, bank)
    cost["training_seconds"] = time.perf_counter() - began
    write_json(folder / _COST, cost)


def better_of(trained: M, start: M, measure: Callable[[Method], Result]) -> tuple[M, Estimate]:
    """Keep the trained method only if it beats its start on validation classes; also the paired gain.

    Training on base classes can cost accuracy on others. The best of several states on the same validation
    episodes is partly luck, so ``measure`` takes other episodes than training has chosen on.
    """
    gain = paired(measure(trained), measure(start), "novel")
    return (trained if gain.mean > 0 and gain.excludes_zero else start), gain


def _keep_if_better(
    path: Path,
    trained: LearnedMethod,
    n_shot: int,
    training: MetaRecipe,
    recipe: CompareRecipe,
    bank: FeatureBank,
) -> dict[str, Any]:
    """Save the start in place of the trained method unless training gained something; say which."""
    device = pick_device(recipe.device)
    start = build_method(training, bank, base_classes(bank)).to(device).eval()
    measure = partial(
        few_way,
        bank=bank,
        n_shot=n_shot,
        n_way=min(recipe.ways, len(bank.classes_of(Part.VALIDATION))),
        n_query=recipe.queries,
        n_episodes=2 * recipe.validation_episodes,
        seed=derive_seed(recipe.seed, "start or trained"),
        joint=False,
        part=Part.VALIDATION,
        device=device,
    )
    kept, gain = better_of(trained, start, measure)
    if kept is start:
        start.start_kept = True
        save_method(path, start, training.method or "")
    return {"start_kept": kept is start, "validation_gain": gain.mean, "validation_gain_ci95": gain.ci95}


def _measure(
    run: Run,
    method: Method,
    cost: dict[str, Any],
    n_shot: int,
    recipe: CompareRecipe,
    bank: FeatureBank,
    bar: Progress,
) -> None:
    device = pick_device(recipe.device)
    began = time.perf_counter()
    result = few_way(
        method,
        bank,
        n_shot,
        n_way=recipe.ways,
        n_query=recipe.queries,
        n_episodes=recipe.episodes,
        seed=_episode_seed(recipe),
        joint=None if recipe.metric != "novel" else False,
        device=device,
        chunk=_CHUNK.get(device.type),
        on_progress=bar.update,
    )
    speed = recipe.episodes / (time.perf_counter() - began)
    replace(result, info={**result.info, **cost, "episodes_per_second": speed}).save(run.results)


def _finished(run: Run, name: str, n_shot: int, recipe: CompareRecipe) -> Result | None:
    stem = file_stem(name, "few-way", recipe.ways, n_shot, _episode_seed(recipe))
    path = run.results / f"{stem}.json"
    return Result.load(path) if path.exists() else None


def _episode_seed(recipe: CompareRecipe) -> int:
    seed = recipe.seed if recipe.episode_seed is None else recipe.episode_seed
    return derive_seed(seed, "test episodes")
