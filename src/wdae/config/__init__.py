"""Typed recipes: YAML in, every key checked, all faults named at once."""

from wdae.config.keys import Key, describe, key_table
from wdae.config.recipe import Config, Field, dump, load
from wdae.config.text import scalar

__all__ = ["Config", "Field", "Key", "describe", "dump", "key_table", "load", "scalar"]
