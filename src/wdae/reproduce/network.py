"""The network that a reproduction trains: its recipe, its training, and what the record keeps of that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wdae.config import load, recipe_file
from wdae.errors import RunError
from wdae.reproduce.benchmarks import Benchmark, Network, Role
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.plan import parse_changes
from wdae.runs.run import Run
from wdae.stage1.config import Stage1Config
from wdae.stage1.model_file import WEIGHTS
from wdae.stage1.run import run_pretraining
from wdae.stage1.train import LAST, MODEL
from wdae.storage.files import sha256
from wdae.storage.records import read_number, write_json
from wdae.storage.trust import refuse_untrusted


def best_network(benchmark: Benchmark, recipe: ReproduceRecipe) -> Network | None:
    """The benchmark's one network for all tables, unless another way was asked for."""
    return None if recipe.quick or recipe.stage1_recipe is not None else benchmark.network


def stage1_config(benchmark: Benchmark, recipe: ReproduceRecipe, role: Role) -> Stage1Config:
    """The recipe of a role's stage 1, with the command line's changes."""
    network = best_network(benchmark, recipe)
    changes: dict[str, Any] = {"data.path": str(recipe.data), "data.layout": benchmark.name}
    changes |= {"seed": recipe.seed, "data.allow_missing": recipe.allow_missing}
    changes |= {"data.reading": recipe.reading}
    if role == "held-out":
        changes["data.held_out"] = recipe.held_out
    elif role == "trainval":
        changes["data.classes"] = "base+validation"
    changes |= parse_changes(recipe.stage1, "--stage1")
    name = network.recipe if network is not None else recipe.stage1_recipe or benchmark.stage1
    config = load(Stage1Config, recipe_file(name, benchmark.name), changes)
    refuse_untrusted(config.backbone, (), "the recipe of stage 1")  # a file may have said --stage1, too
    return config


def without_places(config: Stage1Config) -> dict[str, Any]:
    """A recipe of stage 1 without the folders of models that it names: what must stay the same."""
    kept = config.model_dump(mode="json", exclude_defaults=True)
    kept.pop("start", None)
    kept.get("distillation", {}).pop("teachers", None)
    return kept


def train_network(
    run: Run, benchmark: Benchmark, recipe: ReproduceRecipe, role: Role
) -> tuple[Path, dict[str, Any]]:
    """Train a role's model, go on with it, or take the one an earlier call has finished.

    Returns:
        The model's folder, and what the record keeps of the training.
    """
    config = stage1_config(benchmark, recipe, role)
    folder = run.path / "stage1" / role
    clock = folder.with_name(f"{folder.name}.json")
    if (folder / "recipe.yaml").is_file():
        begun = load(Stage1Config, folder / "recipe.yaml", outside=True)  # compared, not followed
        if without_places(begun) != without_places(config):
            raise RunError(
                f"stage 1 ({role}) was begun in {folder} with another recipe; give the settings it began "
                f"with, another folder with -o, or remove {folder} to train it again"
            )
    before = read_number(clock)
    if not (folder / MODEL).is_dir():
        began = time.perf_counter()
        resume = (folder / LAST).is_file()
        try:
            run_pretraining(config, folder, device=device_of(recipe), resume=resume, force=not resume)
        finally:
            before += time.perf_counter() - began
            if clock.parent.is_dir():
                write_json(clock, before)
    return folder / MODEL, _facts(config, folder, before)


def _facts(config: Stage1Config, folder: Path, seconds: float) -> dict[str, Any]:
    """What the record keeps of a training: its recipe as resolved, its time, and which weights met in it."""
    recipe = config.model_dump(
        mode="json", exclude={"start": True, "data": {"path"}, "distillation": {"teachers"}}
    )
    environment = Run(folder).environment()
    facts: dict[str, Any] = {
        "recipe": recipe,
        "seconds": seconds,
        "environment": {key: environment.get(key) for key in ("commit", "torch", "cpu", "gpu")},
        "weights": sha256(folder / MODEL / WEIGHTS),
    }
    if config.start is not None:
        facts["start"] = sha256(config.start / WEIGHTS)
    if config.distillation is not None:
        facts["teachers"] = [sha256(teacher / WEIGHTS) for teacher in config.distillation.teachers]
    last: dict[str, Any] = next((line for line in reversed(Run(folder).metrics()) if "kept" in line), {})
    return facts | last


def device_of(recipe: ReproduceRecipe) -> str | None:
    """The device a recipe asks for; None for any."""
    return None if recipe.device == "auto" else recipe.device
