"""Plots of a run, each as PNG and SVG: training curves, accuracy against shots.

The colours of Okabe and Ito are distinct for colour-blind readers; methods also differ in marker and line.
The same input gives the same bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wdae.errors import MissingExtraError
from wdae.evaluation.results import Estimate, Result
from wdae.evaluation.table import title
from wdae.printing import printable
from wdae.storage.files import atomic_file

Save = Callable[[str | Path, str], list[Path]]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class may be called "$"
    "svg.hashsalt": "wdae",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}
# What the curves are called in metrics.jsonl, by the panel that shows them.
_PANELS = {
    "loss": ("loss",),
    "accuracy": ("accuracy", "novel", "base", "all"),
    "learning rate": ("learning_rate", "lr"),
}


def training_curves(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> list[Path]:
    """Loss, accuracy and learning rate against the step, from the rows of a run's metrics.

    Returns:
        The files written; none when no row has anything to show.
    """
    panels = {panel: _series(rows, words) for panel, words in _PANELS.items()}
    panels = {panel: series for panel, series in panels.items() if series}
    if not panels:
        return []
    with figure(5.2 * len(panels), 3.8) as (fig, save):
        for axes, (panel, series) in zip(_row(fig, len(panels)), panels.items(), strict=True):
            for i, (name, (steps, values)) in enumerate(series.items()):
                colour = COLOURS[i % len(COLOURS)]
                label = printable(name.replace("_", " ").replace("/", " "))
                if len(values) > 100:
                    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
                    steps, values = _smooth(steps, values)
                few = len(values) <= 30
                axes.plot(steps, values, LINES[i % 4], color=colour, label=label, marker="." if few else "")
            axes.set_title(panel)
            axes.set_xlabel(_axis_name(rows))
            axes.legend()
        return save(folder, "training")


def accuracy_against_shots(results: Iterable[Result], folder: str | Path) -> list[Path]:
    """Accuracy against the number of shots with 95 % intervals, a line for each method.

    Each protocol and number of novel classes has a figure of its own.
    """
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        groups.setdefault((result.protocol, result.n_way), []).append(result)
    paths: list[Path] = []
    for (protocol, n_way), group in groups.items():
        lines = [(r.method, r.n_shot, r.metrics) for r in group]
        name = f"accuracy-{protocol}-{n_way}way"
        paths += shots_figure(lines, folder, name, heading=f"{protocol}, {n_way} novel classes")
    return paths


def shots_figure(
    points: Sequence[tuple[str, int, Mapping[str, Estimate]]],
    folder: str | Path,
    name: str,
    metrics: Sequence[str] = ("novel", "all"),
    heading: str | None = None,
    axis: str = "accuracy, %",
) -> list[Path]:
    """One panel for each metric; ``points`` are a line's label, the number of shots, and estimates."""
    shown = [metric for metric in metrics if any(metric in estimates for _, _, estimates in points)]
    if not shown:
        return []
    shots = sorted({n_shot for _, n_shot, _ in points})
    labels = list(dict.fromkeys(label for label, _, _ in points))
    with figure(5.2 * len(shown), 4.2) as (fig, save):
        panels = _row(fig, len(shown))
        for axes, metric in zip(panels, shown, strict=True):
            for i, label in enumerate(labels):
                mine = {k: e[metric] for own, k, e in points if own == label and metric in e}
                aside = 0.06 * (i - (len(labels) - 1) / 2)  # so that intervals do not cover one another
                axes.errorbar(
                    [shots.index(k) + aside for k in sorted(mine)],
                    [100 * mine[k].mean for k in sorted(mine)],
                    yerr=[100 * np.nan_to_num(mine[k].ci95) for k in sorted(mine)],
                    capsize=3,
                    label=printable(label),
                    **line_style(i),
                )
            axes.set_xticks(range(len(shots)), [str(k) for k in shots])
            axes.set_xlim(-0.4, len(shots) - 0.6)
            axes.set_xlabel("shots (images of each novel class)")
            axes.set_ylabel(axis)
            axes.set_title(title(metric))
        panels[0].legend(loc="lower right")
        fig.suptitle(heading)
        return save(folder, name)


def line_style(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of the i-th line."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": LINES[i % len(LINES)],
    }


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple[Any, Save]]:
    """A matplotlib figure of that many inches in the house style, and ``save(folder, name) -> paths``."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing plots") from None
    with matplotlib.rc_context(_STYLE):
        fig = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(fig)

        def save(folder: str | Path, name: str) -> list[Path]:
            paths = [Path(folder) / f"{name}.{suffix}" for suffix in ("png", "svg")]
            for path in paths:
                # Dates and versions would make two equal plots differ.
                plain = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
                with atomic_file(path) as temporary, warnings.catch_warnings():
                    # Names in scripts that the PNG's font lacks are boxes there and whole in the SVG.
                    warnings.filterwarnings("ignore", message="Glyph .* missing")
                    fig.savefig(temporary, format=path.suffix[1:], metadata=plain)
            return paths

        yield fig, save


def _row(fig: Any, n: int) -> list[Any]:
    return list(fig.subplots(1, n, squeeze=False)[0])


def _axis_name(rows: Sequence[Mapping[str, Any]]) -> str:
    return next((name for name in ("step", "epoch") if any(name in row for row in rows)), "line")


def _series(rows: Sequence[Mapping[str, Any]], words: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The columns whose name has one of the words in it, each with the steps at which it was logged."""
    axis = _axis_name(rows)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            parts = [name, *name.replace("/", "_").split("_")]
            if any(word in parts for word in words) and isinstance(value, (int, float)):
                steps, values = found.setdefault(name, ([], []))
                steps.append(row.get(axis, number))
                values.append(value)
    return {name: (np.array(steps), np.array(values)) for name, (steps, values) in found.items()}


def _smooth(steps: Any, values: Any) -> tuple[Any, Any]:
    """A running mean over a fiftieth of the points."""
    window = max(2, len(values) // 50)
    kernel = np.ones(window) / window
    half = (window - 1) // 2
    return steps[half : len(steps) - (window - 1 - half)], np.convolve(values, kernel, mode="valid")
