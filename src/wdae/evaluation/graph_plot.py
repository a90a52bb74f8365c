"""A picture of the class graph, before and after the denoiser refined the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.errors import WdaeError
from wdae.evaluation.plots import COLOURS, figure
from wdae.printing import printable

Array = npt.NDArray[Any]
_BASE, _NOVEL = "#9aa0a6", COLOURS[1]
LABELS, EDGES = 100, 3000  # more cannot be read
Box = tuple[float, float, float, float]
_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))


@dataclass(frozen=True)
class GraphPicture:
    """Classes as points, and the edges between them.

    Attributes:
        names: class names, N of them.
        before, after: weights before and after refinement, [N, D].
        edges: pairs (class, neighbour), [M, 2].
        strengths: of the edges, [M].
        novel: which classes are novel, [N].
    """

    names: tuple[str, ...]
    before: Array
    after: Array
    edges: Array
    strengths: Array
    novel: Array

    def __post_init__(self) -> None:
        n = len(self.names)
        wanted = {"before": (n, self.before.shape[-1]), "after": self.before.shape, "novel": (n,)}
        for name, shape in {**wanted, "edges": (len(self.strengths), 2)}.items():
            came = getattr(self, name).shape
            if came != shape:
                raise WdaeError(f"a class graph of {n} classes needs {name} of shape {shape}, got {came}")


def positions(before: Array, after: Array) -> tuple[Array, Array]:
    """Both sets of weights in one plane: the two principal axes of their directions, [N, 2] each."""
    rows = np.concatenate([before, after]).astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    rows -= rows.mean(axis=0)
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    flat = rows @ axes[:2].T
    if flat.shape[1] < 2:
        flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    # An axis has no direction of its own: the largest value is made positive, so that runs agree.
    flat *= np.sign(flat[np.abs(flat).argmax(axis=0), [0, 1]] + 1e-300)
    return flat[: len(before)], flat[len(before) :]


def draw_class_graph(graph: GraphPicture, folder: str | Path) -> list[Path]:
    """Two panels with the same axes: the graph before refinement, and after it.

    Novel classes and their neighbours are named; the others too as long as there are few classes.
    """
    before, after = positions(graph.before, graph.after)
    with figure(15, 7.5) as (fig, save):
        left, right = fig.subplots(1, 2, sharex=True, sharey=True)
        panels = ((left, before, "before refinement"), (right, after, "after refinement"))
        for axes, points, heading in panels:
            axes.set_title(heading)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            axes.margins(0.12, 0.08)
            _edges(axes, graph, points)
        arrow = {"arrowstyle": "->", "color": _NOVEL, "linestyle": ":", "shrinkA": 0}
        for old, new in zip(before[graph.novel], after[graph.novel], strict=True):
            right.annotate("", new, old, arrowprops=arrow)
        for axes, points, _ in panels:
            axes.scatter(*points[~graph.novel].T, s=26, c=_BASE, marker="o", label="base", zorder=3)
            axes.scatter(*points[graph.novel].T, s=140, c=_NOVEL, marker="*", label="novel", zorder=3)
        hollow: dict[str, Any] = {"facecolors": "none", "edgecolors": _NOVEL}
        right.scatter(*before[graph.novel].T, s=90, marker="*", zorder=3, **hollow)
        handles, words = left.get_legend_handles_labels()
        fig.legend(handles, words, loc="outside lower center", ncols=2)
        fig.draw_without_rendering()  # fixes the layout, which the labels are placed in
        for axes, points, _ in panels:
            _labels(axes, graph, points)
        fig.set_layout_engine("none")
        return save(folder, "class-graph")


def _edges(axes: Any, graph: GraphPicture, points: Array) -> None:
    strongest = float(np.max(graph.strengths, initial=1e-12))
    for (i, j), strength in zip(graph.edges, graph.strengths, strict=True):
        if i == j or (len(graph.edges) > EDGES and not graph.novel[i]):
            continue
        share = max(0.0, float(strength) / strongest)
        from_novel = bool(graph.novel[i])
        axes.plot(
            *points[[i, j]].T,
            color=_NOVEL if from_novel else _BASE,
            alpha=(0.15 + 0.55 * share) if from_novel else 0.05 + 0.25 * share,
            linewidth=0.5 + 2 * share,
            zorder=2 if from_novel else 1,
        )


def _named(graph: GraphPicture) -> list[int]:
    """Which classes get a label, the most important first."""
    novel = [int(i) for i in np.flatnonzero(graph.novel)]
    order = np.argsort(-graph.strengths, kind="stable")
    neighbours = [int(j) for i, j in graph.edges[order] if graph.novel[i]]
    rest = range(len(graph.names)) if len(graph.names) <= LABELS else ()
    return list(dict.fromkeys([*novel, *neighbours, *rest]))[: max(LABELS, len(novel))]


def _labels(axes: Any, graph: GraphPicture, points: Array) -> None:
    """Names beside their points, where they cover least; a base name that fits nowhere is left out."""
    scale = 72 / axes.figure.dpi
    pixels = axes.transData.transform(points) * scale  # in points, as font sizes are
    frame = axes.get_window_extent()
    width, left = frame.width * scale, frame.x0 * scale
    taken: list[Box] = [(x - 3, y - 3, x + 3, y + 3) for x, y in pixels]
    for i in _named(graph):
        novel = bool(graph.novel[i])
        size = 10 if novel else 7.5
        w, h = (0.7 if novel else 0.6) * size * len(graph.names[i]), 1.15 * size
        places: list[tuple[float, Box]] = []
        for distance in (9, 14, 20, 28, 38) if novel else (5, 9, 14, 22, 32):
            for dx, dy in _DIRECTIONS:
                x = pixels[i, 0] + dx * distance - (w if dx < 0 else w / 2 if dx == 0 else 0)
                y = pixels[i, 1] + dy * distance - h / 2
                box = (x, y, x + w, y + h)
                outside = max(0.0, left - x) + max(0.0, x + w - left - width)
                cost = sum(_overlap(box, other) for other in taken) + 10 * h * outside + 0.2 * distance
                places.append((round(cost, 9), box))
        cost, box = min(places, key=lambda place: place[0])
        if cost > 0.35 * w * h + 8 and not novel:
            continue
        taken.append(box)
        text = axes.annotate(
            printable(graph.names[i]),
            points[i],
            xytext=(box[0] + w / 2 - pixels[i, 0], box[1] + h / 2 - pixels[i, 1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            color="#8c3a00" if novel else "#333333",
            fontweight="bold" if novel else "normal",
            zorder=4,
        )
        text.set_in_layout(False)


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
