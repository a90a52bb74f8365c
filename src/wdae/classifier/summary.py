"""What ``wdae info`` says about a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wdae.classifier.history import describe_share
from wdae.classifier.light.facts import ModelFacts
from wdae.classifier.names import shorten
from wdae.methods.records import RATE
from wdae.printing import cell, counted, size_text

_SHOWN = 30
_NAMED = 200  # base classes
_FEW = 400  # pictures, of which a share is known to within some points
_BEFORE = "_before"
HELD_OUT = "held_out"
"""What of a model's info says how many base pictures its calibration and figures were found on."""
MEASURED = "measured_on"
"""What of a model's info says on which pictures its figures were measured, where they are not its user's."""
_LABELS = {
    "accuracy_base": "accuracy among base classes",
    "ece_base": "calibration error, base classes",
    "auroc_unknown": "known against unknown (AUROC)",
}


def summary(path: str | Path) -> dict[str, Any]:
    """The facts about the model in a folder, as JSON values."""
    model = ModelFacts.open(path)
    kept, balance = model.manifest, model.calibration
    on_line = {change.number for change in model.history.line()}
    return {
        "path": str(path),
        "dim": kept.dim,
        "base_classes": list(model.base_names),
        "added_classes": {name: model.shots(name) for name in model.added},
        "updated_base_classes": {n: model.shots(n) for n in model.state if n not in set(model.added)},
        "backbone": model.card,
        "denoiser": kept.info.get("denoiser"),
        "steps": None if model.steps is None else {str(k): v for k, v in model.steps.items()},
        "novel_share": model.novel_share,
        "protecting": {str(k): share for k, share in sorted(balance.protecting.items())},
        "refine_base": model.refines_base,
        "figures": dict(balance.figures),
        "unknown": unknown_in_words(balance.figures, model.detects, few_held_out(kept.info)),
        "head": model.history.head,
        "history": [
            {
                "number": change.number,
                "after": change.parent,
                "time": change.time,
                "what": change.describe(),
                "in_effect": change.number in on_line,
            }
            for change in model.history.changes
        ],
        "bytes_on_disk": sum(f.stat().st_size for f in model.path.iterdir() if f.is_file()),
        "info": {k: v for k, v in kept.info.items() if k not in ("denoiser",)},
    }


def print_summary(facts: dict[str, Any]) -> None:
    """Print a summary: a few lines, then tables of added classes, figures and history."""
    console = Console()
    base, added = facts["base_classes"], facts["added_classes"]
    backbone = facts["backbone"]
    pictures = (
        "none: works on features"
        if backbone is None
        else f"{backbone['backbone']}, {backbone['image_size']} px"
    )
    lines = {
        "model": f"{facts['path']}, {size_text(facts['bytes_on_disk'])}",
        "classes": f"{len(base)} base, {len(added)} added",
        "features": f"{facts['dim']} dimensions",
        "backbone": pictures,
        "denoiser": facts["denoiser"],
        "expects": _expects(facts["novel_share"], facts["protecting"]),
        "unknown": facts["unknown"],
        "base classes": ", ".join(shorten(name) for name in base[:_NAMED])
        + (f" … and {len(base) - _NAMED} more (--json lists all)" if len(base) > _NAMED else ""),
    }
    for key, value in lines.items():
        console.print(cell(f"{key}: {value}"), soft_wrap=True)
    if facts["figures"]:
        table = Table(title="On data that was held out", title_justify="left")
        table.add_column("figure")
        table.add_column("value", justify="right")
        table.add_column("uncalibrated", justify="right")
        figures = facts["figures"]
        for key, value in figures.items():
            if not key.endswith(_BEFORE) and not key.startswith(("caught", "strength", "gain")):
                before = figures.get(key + _BEFORE)
                table.add_row(cell(label(key)), f"{value:.3f}", "" if before is None else f"{before:.3f}")
        console.print(table)
        if few := few_held_out(facts["info"]):
            console.print(f"found on {few} held-out pictures of base classes: of so few, they are rough")
        if measured := facts["info"].get(MEASURED):
            console.print(cell(f"measured on {measured}"), soft_wrap=True)
    if added:
        table = Table(title="Added classes", title_justify="left")
        table.add_column("class")
        table.add_column("examples", justify="right")
        for name, shots in list(added.items())[:_SHOWN]:
            table.add_row(cell(shorten(name)), str(shots))
        if len(added) > _SHOWN:
            table.add_row(f"… and {len(added) - _SHOWN} more", "")
        console.print(table)
    for change in facts["history"][-_SHOWN:]:
        mark = "*" if change["number"] == facts["head"] else " " if change["in_effect"] else "-"
        text = f"{mark} {change['number']:>3}  {change['time']}  {shorten(change['what'], 90)}"
        console.print(cell(text), soft_wrap=True)
    if facts["history"]:
        console.print("* where the model stands; - taken back (wdae undo MODEL --to N returns)", style="dim")


def _expects(share: float | None, protecting: dict[str, float]) -> str:
    """How often pictures of added classes are expected, with what that is where it depends on the shots."""
    if share is not None:
        return describe_share(share)
    if not protecting:
        return "pictures of any class alike; there were no held-out ones to find a balance on"
    by_shots = ", ".join(
        f"{100 * value:.2g} % with {counted(int(k), 'example')} of each" for k, value in protecting.items()
    )
    return f"{describe_share(None)}: {by_shots}"


def few_held_out(info: Mapping[str, Any]) -> int:
    """How many held-out pictures a model's figures were found on, if these are few; else 0."""
    n = info.get(HELD_OUT)
    return n if isinstance(n, int) and 0 < n < _FEW else 0


def unknown_in_words(figures: Mapping[str, float], detects: bool, few: int = 0) -> str:
    """What share of things that are none of its classes a model calls unknown, by its figures.

    Args:
        few: the held-out pictures that this was found on, if they are few (:func:`few_held_out`): which
            ones were drawn then shifts the shares a lot.
    """
    if not detects:
        return (
            "told by the best score alone; a model learned from many pictures of each class tells it better"
        )
    text = "nothing is known of how often it is told: too few classes to try it on"
    if "caught" in figures:
        text = f"{_percent(figures['caught'])} of pictures of classes that it has never seen are called so"
        if "caught_5" in figures:
            text += f" ({_percent(figures['caught_5'])} once five classes are added from five pictures each)"
        if few:
            text = f"very roughly (it was found on {few} held-out pictures) {text}"
    nothing = [k for k in ("noise", "text", "flat", "screen") if f"caught_{k}" in figures]
    if nothing:
        text += "; " + ", ".join(f"{k} {_percent(figures[f'caught_{k}'])}" for k in nothing)
    else:
        text += "; not calibrated on pictures of nothing (noise, text), since it was learned from features"
    return text + f"; where {_percent(RATE)} of pictures of known classes may be called so wrongly"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def label(figure: str) -> str:
    """A figure's name in words.

    >>> label("ece_added_5"), label("auroc_unknown")
    ('calibration error, 5-shot classes added', 'known against unknown (AUROC)')
    """
    if figure.startswith("caught"):
        what = figure.removeprefix("caught").removeprefix("_")
        added = f", {what}-shot classes added" if what.isdigit() else ""
        unseen = "classes never seen" if added or not what else what
        return f"{unseen}{added}: share called unknown at {_percent(RATE)} false alarms"
    if figure.startswith("strays_"):
        size = figure.removeprefix("strays_")
        rate = _percent(RATE)
        return f"an example of another class among {size}: share noticed at {rate} false warnings or fewer"
    if figure.startswith("accuracy_added_"):
        return f"accuracy of {figure.removeprefix('accuracy_added_')}-shot added classes among all classes"
    if figure.startswith("ece_added_"):
        return f"calibration error, {figure.removeprefix('ece_added_')}-shot classes added"
    return _LABELS.get(figure, figure.replace("_", " "))
