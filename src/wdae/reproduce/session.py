"""Open the run folder of a reproduction: a new one, or one to go on with."""

from __future__ import annotations

from pathlib import Path

from wdae.errors import RunError
from wdae.reproduce.benchmark import Benchmark
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.run import chosen_rows
from wdae.runs.run import Run
from wdae.storage.records import read_json, write_json

BENCHMARK = "benchmark.json"


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
