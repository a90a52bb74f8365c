"""Typed recipes: YAML in, every key checked, all faults named at once."""
