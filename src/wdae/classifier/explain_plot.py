"""``wdae explain`` as a picture: neighbours, classes it may be confused with, and its examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wdae.classifier.explain import Explanation
from wdae.classifier.model import Model
from wdae.classifier.names import shorten
from wdae.evaluation.plots import COLOURS, figure

_EXAMPLES = 8


def explanation_plot(model: Model, found: Explanation, folder: str | Path, name: str) -> list[Path]:
    """Draw an explanation to ``folder/name`` (.png and .svg)."""
    shown = model.examples_of(found.name)[:_EXAMPLES]
    with figure(12, 6.5 if shown else 4) as (fig, save):
        rows = fig.subfigures(2, 1, height_ratios=[3, 2]) if shown else [fig]
        left, right = rows[0].subplots(1, 2)
        near = [n.strength if found.listens else n.similarity for n in found.neighbours]
        _bars(left, [n.name for n in found.neighbours], near, COLOURS[0])
        left.set_title("listens to (strength of the edge)" if found.listens else "nearest classes (cosine)")
        names = [found.name, *(c.name for c in found.confusable)]
        chances = [found.own_probability, *(c.probability for c in found.confusable)]
        _bars(right, names, chances, COLOURS[1])
        right.set_title("probabilities at its centre")
        moved = "" if found.moved is None else f", moved by {found.moved:.1f}°"
        rows[0].suptitle(f"{shorten(found.name, 40)}: {found.shots} examples{moved}")
        if shown:
            strip = rows[1].subplots(1, len(shown), squeeze=False)[0]
            for axes, example, view in zip(strip, shown, found.examples, strict=False):
                axes.set_xticks([])
                axes.set_yticks([])
                if example.picture is not None:
                    axes.imshow(example.picture.numpy())
                else:
                    axes.plot(example.feature.numpy(), linewidth=0.5, color=COLOURS[0])
                agreement = "only one" if view.agreement is None else f"agrees {view.agreement:.2f}"
                label = shorten(Path(example.source).name, 18)
                axes.set_xlabel(f"{label}\n{agreement}", fontsize=8)
                if view.out_of_place:
                    for spine in axes.spines.values():
                        spine.set(color="red", linewidth=3)
        return save(folder, name)


def _bars(axes: Any, names: list[str], values: list[float], colour: str) -> None:
    places = range(len(names))
    axes.barh(places, values, color=colour)
    axes.set_yticks(list(places), [shorten(name, 24) for name in names])
    axes.invert_yaxis()
