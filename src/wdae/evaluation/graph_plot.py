"""The class graph with names, before and after the denoiser refined the weights."""

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
LABELS, EDGES = 100, 3000  # more would be a blot


@dataclass(frozen=True)
class ClassGraph:
    """Classes as points and who listens to whom.

    Attributes:
        names: class names, N of them.
        before: weights that went in, [N, D].
        after: weights that came out, [N, D].
        edges: pairs (class, neighbour), [M, 2].
        strengths: how strong each edge is, [M].
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
        shapes = {
            "before": (self.before.shape, (n, self.before.shape[-1])),
            "after": (self.after.shape, self.before.shape),
            "edges": (self.edges.shape, (len(self.strengths), 2)),
            "novel": (self.novel.shape, (n,)),
        }
        for name, (came, wanted) in shapes.items():
            if came != wanted:
                raise WdaeError(f"a class graph of {n} classes needs {name} of shape {wanted}, got {came}")


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


def class_graph(graph: ClassGraph, folder: str | Path, name: str = "class-graph") -> list[Path]:
    """Two panels in one frame of reference: the graph before refinement, and after it.

    Novel classes and what they listen to are named; the others too as long as there are few classes.
    """
    before, after = positions(graph.before, graph.after)
    with figure(15, 7.5) as (fig, save):
        left, right = fig.subplots(1, 2, sharex=True, sharey=True)
        for axes, points, heading in (
            (left, before, "before refinement"),
            (right, after, "after refinement"),
        ):
            axes.set_title(heading)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            axes.margins(0.12, 0.08)
            _edges(axes, graph, points)
        for old, new in zip(before[graph.novel], after[graph.novel], strict=True):
            right.annotate(
                "", new, old, arrowprops={"arrowstyle": "->", "color": _NOVEL, "linestyle": ":", "shrinkA": 0}
            )
        for axes, points in ((left, before), (right, after)):
            for novel, colour, size, word in ((False, _BASE, 26, "base"), (True, _NOVEL, 70, "novel")):
                here = points[graph.novel == novel]
                marker = "*" if novel else "o"
                axes.scatter(
                    *here.T, s=2 * size if novel else size, c=colour, marker=marker, label=word, zorder=3
                )
        right.scatter(
            *before[graph.novel].T, s=90, marker="*", facecolors="none", edgecolors=_NOVEL, zorder=3
        )
        handles, words = left.get_legend_handles_labels()
        fig.legend(handles, words, loc="outside lower center", ncols=2)
        fig.draw_without_rendering()  # settles the layout, which the labels are placed in
        for axes, points in ((left, before), (right, after)):
            _labels(axes, graph, points)
        fig.set_layout_engine("none")
        return save(folder, name)


def _edges(axes: Any, graph: ClassGraph, points: Array) -> None:
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


def _named(graph: ClassGraph) -> list[int]:
    """Which classes get a label, the most important first."""
    novel = [int(i) for i in np.flatnonzero(graph.novel)]
    order = np.argsort(-graph.strengths, kind="stable")
    heard = [int(j) for i, j in graph.edges[order] if graph.novel[i]]
    rest = range(len(graph.names)) if len(graph.names) <= LABELS else ()
    return list(dict.fromkeys([*novel, *heard, *rest]))[: max(LABELS, len(novel))]


def _labels(axes: Any, graph: ClassGraph, points: Array) -> None:
    """Names beside their points, where they cover least; a base name that fits nowhere is left out."""
    fig = axes.figure
    scale = 72 / fig.dpi
    pixels = axes.transData.transform(points) * scale  # in points, as font sizes are
    frame = axes.get_window_extent()
    width, left = frame.width * scale, frame.x0 * scale
    taken: list[tuple[float, float, float, float]] = [(x - 3, y - 3, x + 3, y + 3) for x, y in pixels]
    for i in _named(graph):
        novel = bool(graph.novel[i])
        size = 10 if novel else 7.5
        w, h = (0.7 if novel else 0.6) * size * len(graph.names[i]), 1.15 * size
        best = None
        for distance in (9, 14, 20, 28, 38) if novel else (5, 9, 14, 22, 32):
            for dx, dy in (
                (1, 0),
                (-1, 0),
                (0, 1),
                (0, -1),
                (0.8, 0.8),
                (-0.8, 0.8),
                (0.8, -0.8),
                (-0.8, -0.8),
            ):
                x = pixels[i, 0] + dx * distance - (w if dx < 0 else w / 2 if dx == 0 else 0)
                y = pixels[i, 1] + dy * distance - h / 2
                box = (x, y, x + w, y + h)
                outside = max(0.0, left - x) + max(0.0, x + w - left - width)
                cost = sum(_overlap(box, other) for other in taken) + 10 * h * outside + 0.2 * distance
                if best is None or cost < best[0] - 1e-9:
                    best = (cost, box)
        assert best is not None
        cost, box = best
        if cost > 0.35 * w * h + 8 and not novel:
            continue
        taken.append(box)
        centre = (box[0] + w / 2 - pixels[i, 0], box[1] + h / 2 - pixels[i, 1])
        text = axes.annotate(
            printable(graph.names[i]),
            points[i],
            xytext=centre,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            color="#8c3a00" if novel else "#333333",
            fontweight="bold" if novel else "normal",
            zorder=4,
        )
        text.set_in_layout(False)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
