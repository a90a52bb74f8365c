"""Typed recipes: YAML in, every key checked, all faults named at once."""

from wdae.config.keys import Key, describe
from wdae.config.recipe import Config, Field, dump, load
from wdae.config.shipped import find_recipe, recipe_file, recipe_folder
from wdae.config.text import scalar

__all__ = [
    "Config",
    "Field",
    "Key",
    "describe",
    "dump",
    "find_recipe",
    "load",
    "recipe_file",
    "recipe_folder",
    "scalar",
]
