"""Many methods on one bank: train what needs training, measure all on the same episodes, keep everything."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from wdae.bank import FeatureBank
from wdae.device import pick_device
from wdae.errors import ModelError, RecipeError
from wdae.evaluation.protocol import few_way
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.methods import WDAE, LearnedMethod, Method, find, is_learned, make, names
from wdae.methods.saved import load_method
from wdae.progress import Progress, progress
from wdae.randomness import derive_seed
from wdae.run import Run
from wdae.storage import read_json, write_json
from wdae.train.compare_config import CompareRecipe
from wdae.train.meta_config import DenoiserConfig, EvaluationConfig, MetaRecipe, TrainingConfig
from wdae.train.pipeline import MODEL, train_method

_COST = "cost.json"  # written last: a method that has it is trained
_CHUNK = {"cuda": 512}  # episodes at once: some methods hold a graph for each query


def chosen_methods(recipe: CompareRecipe) -> list[str]:
    """The names a recipe asks for, the reference first; unknown ones are refused, all names listed."""
    asked = names() if recipe.methods == ("all",) else list(dict.fromkeys(recipe.methods))
    for name in (*asked, recipe.reference):
        kind = find(name)
        if recipe.metric in ("base", "all") and not kind.joint:
            raise ModelError(
                f"{name} scores novel classes only, so it has no {recipe.metric} accuracy; leave it out, or "
                "compare novel accuracy"
            )
    return [recipe.reference, *(name for name in asked if name != recipe.reference)]


def training_recipe(name: str, recipe: CompareRecipe) -> MetaRecipe:
    """How a comparison trains a learned method: its own defaults, the comparison's length."""
    kind = find(name)
    steps = recipe.steps * kind.training_length
    common: dict[str, Any] = {
        "steps": steps,
        "episodes_per_step": recipe.episodes_per_step,
        "validate_every": -(-steps // 3),
        "validation_episodes": recipe.validation_episodes,
    }
    defaults = dict(kind.training_defaults)
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
        options=options,
        training=TrainingConfig(**(common | defaults)),
        evaluation=EvaluationConfig(
            shots=recipe.shots,
            ways=recipe.ways,
            queries=recipe.queries,
            step_episodes=recipe.validation_episodes,
        ),
        **denoiser,
    )


def run_comparison(run: Run, recipe: CompareRecipe, bank: FeatureBank) -> ResultTable:
    """Train and measure every method of a recipe; what an earlier call has finished is not run again."""
    chosen = chosen_methods(recipe)
    if recipe.reference == "all":
        raise RecipeError("'reference' is one method, got 'all'")
    for position, name in enumerate(chosen):
        missing = [k for k in recipe.shots if _finished(run, name, k, recipe) is None]
        if not missing:
            continue
        method, cost = _ready(run, name, recipe, bank)
        total = len(missing) * recipe.episodes
        with progress(total, f"measuring {name} ({position + 1} of {len(chosen)})") as bar:
            for n_shot in missing:
                _measure(run, method, cost, n_shot, recipe, bank, bar)
    results = [_finished(run, name, k, recipe) for k in recipe.shots for name in chosen]
    return ResultTable(tuple(result for result in results if result is not None))


def _ready(run: Run, name: str, recipe: CompareRecipe, bank: FeatureBank) -> tuple[Method, dict[str, Any]]:
    """A method to measure and what it cost, trained now or by an earlier call."""
    device = pick_device(recipe.device)
    if not is_learned(name):
        return make(name), {"parameters": 0, "training_seconds": 0.0}
    folder = run.path / "methods" / name
    if (folder / _COST).exists():
        return load_method(folder / MODEL, device, dim=bank.dim), read_json(folder / _COST)
    training = training_recipe(name, recipe)
    part = Run.resume(folder) if folder.exists() else Run.create(folder, training, seed=recipe.seed)
    began = time.perf_counter()
    method = train_method(part, training, bank, resume=True)
    cost = {"parameters": _n_parameters(method), "training_seconds": time.perf_counter() - began}
    write_json(folder / _COST, cost)
    return load_method(folder / MODEL, device, dim=bank.dim), cost


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
        told=bar.update,
    )
    speed = recipe.episodes / (time.perf_counter() - began)
    replace(result, info={**result.info, **cost, "episodes_per_second": speed}).save(run.results)


def _finished(run: Run, name: str, n_shot: int, recipe: CompareRecipe) -> Result | None:
    stem = f"{name}-few-way-{recipe.ways}way-{n_shot}shot-seed{_episode_seed(recipe)}"
    path = run.results / f"{stem}.json"
    return Result.load(path) if path.exists() else None


def _episode_seed(recipe: CompareRecipe) -> int:
    return derive_seed(recipe.seed, "test episodes")


def _n_parameters(method: Method) -> int:
    if isinstance(method, LearnedMethod):
        return method.n_parameters()
    modules: Sequence[torch.nn.Module] = [method.denoiser] if isinstance(method, WDAE) else []
    return sum(p.numel() for module in modules for p in module.parameters())
