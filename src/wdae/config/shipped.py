"""What ships with the package: its assets, and recipes (in a checkout these lie beside ``src``)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from wdae.errors import RecipeError, did_you_mean, listed

ASSETS = Path(__file__).parents[1] / "assets"
EMBEDDED = "embedded"
"""What the backbone and the bank inside the package are called."""
EMBEDDED_BACKBONE = ASSETS / "resnet12"


def recipe_folder(benchmark: str = "") -> Path:
    """The folder of all recipes, or of those of a benchmark."""
    package = Path(str(files("wdae")))
    for root in (package / "recipes", package.parents[1] / "recipes"):
        if (root / benchmark).is_dir():
            return root / benchmark
    raise RecipeError(f"no recipes for {benchmark!r} beside the package; install wdae anew, or give files")


def find_recipe(benchmark: str, name: str) -> Path | None:
    """The recipe file of that name, None where there is none."""
    path = recipe_folder(benchmark) / f"{name}.yaml"
    return path if path.is_file() else None


def recipe_file(name: str | Path, benchmark: str = "") -> Path:
    """The file of a recipe: any file, or one that ships with the package by its name.

    >>> recipe_file("mini-imagenet/wdae-gnn").name, recipe_file("lwof", "mini-imagenet").name
    ('wdae-gnn.yaml', 'lwof.yaml')
    """
    if Path(name).is_file():
        return Path(name)
    found = (
        None if Path(name).is_absolute() or ".." in Path(name).parts else find_recipe(benchmark, str(name))
    )
    if found is None:
        folder = recipe_folder(benchmark)
        known = [str(file.relative_to(folder).with_suffix("")) for file in sorted(folder.rglob("*.yaml"))]
        hint = did_you_mean(str(name), known) or f"; give a YAML file, or one of {listed(known, 5)}"
        raise RecipeError(f"no file and no recipe of the package is called {str(name)!r}{hint}")
    return found
