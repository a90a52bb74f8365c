"""Where the recipes of the rows lie: in the checkout, or inside an installed package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from wdae.errors import RecipeError, nearest


def recipe_folder(benchmark: str) -> Path:
    """The folder of a benchmark's recipes."""
    package = Path(str(files("wdae")))
    # A wheel carries recipes/ inside the package; a checkout has it beside src/.
    for root in (package / "recipes", package.parents[1] / "recipes"):
        if (root / benchmark).is_dir():
            return root / benchmark
    raise RecipeError(f"no recipes for {benchmark} beside the package; install wdae anew, or give files")


def find_recipe(benchmark: str, name: str) -> Path | None:
    """The recipe file of a row, None where there is none."""
    path = recipe_folder(benchmark) / f"{name}.yaml"
    return path if path.is_file() else None


def stage1_recipe(benchmark: str, name: str) -> Path:
    """The recipe of stage 1: one of the benchmark's by name, or any file."""
    if Path(name).is_file():
        return Path(name)
    found = find_recipe(benchmark, name)
    if found is None:
        known = [file.stem for file in recipe_folder(benchmark).glob("stage1-*.yaml")]
        raise RecipeError(f"no stage-1 recipe {name!r}{nearest(name, known)}; give a file or one of these")
    return found
