"""What ``wdae bank show`` says about a bank."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from wdae.bank.feature_bank import FeatureBank
from wdae.bank.format import size_on_disk
from wdae.parts import Part
from wdae.printing import cell


def summary(bank: FeatureBank, path: str | Path) -> dict[str, Any]:
    """The facts about a bank opened from ``path``, as JSON values."""
    parts: dict[str, Any] = {}
    for part in Part:
        counts = [n for n in bank.counts(part) if n]
        spread = {"min": min(counts), "median": median(counts), "max": max(counts)} if counts else None
        parts[part.value] = {"classes": len(counts), "images": sum(counts), "images_per_class": spread}
    return {
        "path": str(path),
        "classes": len(bank.class_names),
        "images": len(bank.labels),
        "dim": bank.dim,
        "dtype": str(bank.features.dtype).removeprefix("torch."),
        "bytes_on_disk": size_on_disk(path),
        "parts": parts,
        "base_weights": None if bank.base_weights is None else list(bank.base_weights.shape),
        "cosine_scale": bank.cosine_scale,
        "query_only": 0 if bank.query_only is None else int(bank.query_only.sum()),
        "info": bank.info,
    }


_LONG = 200  # characters of a nested fact, such as a whole recipe, beyond which it is cut


def print_summary(facts: dict[str, Any]) -> None:
    """Print a summary as a table with the bank's other facts below it."""
    console = Console()
    table = Table(title=cell(f"Feature bank {facts['path']}"), title_justify="left")
    for heading in ("part", "classes", "images", "images a class: min", "median", "max"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for name, row in facts["parts"].items():
        spread = row["images_per_class"]
        cells = [f"{spread[key]:g}" for key in ("min", "median", "max")] if spread else ["–"] * 3
        table.add_row(name, str(row["classes"]), str(row["images"]), *cells)
    console.print(table)
    weights = facts["base_weights"]
    if weights is None:
        learned = "none; class means stand in for them"
    else:
        scale = facts["cosine_scale"]
        learned = f"{weights[0]} × {weights[1]}" + (
            f", cosine scale {scale:.4g}" if scale is not None else ""
        )
    size = _size(facts["bytes_on_disk"])
    lines = {
        "features": f"{facts['images']} × {facts['dim']}, {facts['dtype']}, {size} on disk",
        "base weights": learned,
    }
    if facts["query_only"]:
        lines["queries only"] = f"{facts['query_only']} images, never learned from"
    for key, value in [*lines.items(), *facts["info"].items()]:
        text = str(value)
        if isinstance(value, dict | list) and len(text) > _LONG:
            text = f"{text[:_LONG]} … (--json shows all)"
        console.print(cell(f"{key}: {text}"), soft_wrap=True)


def _size(n_bytes: int) -> str:
    """A number of bytes for people.

    >>> _size(6_700_000)
    '6.4 MiB'
    """
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
