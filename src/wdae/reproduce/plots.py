"""The plots of a reproduction, drawn from its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdae.evaluation.plots import COLOURS, figure, line_style, shots_figure
from wdae.evaluation.results import Estimate


def draw(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every plot the record has figures for, as PNG and SVG; the files written."""
    curves, paths = record["curves"], []
    if len({line["n_shot"] for line in curves["shots"]}) > 1:
        top5 = any(metric.endswith("_top5") for table in record["tables"] for metric in table["metrics"])
        axis = "top-5 accuracy, %" if top5 else "accuracy, %"
        points = [
            (line["label"], line["n_shot"], {m: Estimate.from_dict(e) for m, e in line["metrics"].items()})
            for line in curves["shots"]
        ]
        paths += shots_figure(points, folder, "accuracy-against-shots", axis=axis)
    if curves["trade_off"]:
        paths += trade_off(curves["trade_off"], folder)
    if curves["classes"]:
        paths += gain_by_distance(curves["classes"], curves["class_shots"], folder)
    return paths


def trade_off(curves: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Base against novel accuracy among all classes as a constant is added to novel scores."""
    shots = sorted({curve["n_shot"] for curve in curves})
    with figure(5.2 * len(shots), 4.4) as (fig, save):
        panels = list(fig.subplots(1, len(shots), squeeze=False)[0])
        for axes, n_shot in zip(panels, shots, strict=True):
            for i, curve in enumerate(c for c in curves if c["n_shot"] == n_shot):
                style = line_style(i)
                novel, base = 100 * np.array(curve["novel"]), 100 * np.array(curve["base"])
                order = np.argsort(novel)
                axes.plot(novel[order], base[order], style["linestyle"], color=style["color"])
                axes.plot(novel[0], base[0], style["marker"], color=style["color"], label=curve["label"])
            axes.set_xlabel("novel queries right among all classes, %")
            axes.set_ylabel("base queries right among all classes, %")
            axes.set_title(f"{n_shot} shot{'s' if n_shot > 1 else ''}; marks: no further constant")
        panels[0].legend(loc="lower left")
        return save(folder, "base-novel-trade-off")


def gain_by_distance(classes: Sequence[Mapping[str, Any]], n_shot: int, folder: Path) -> list[Path]:
    """Gain of the GNN over the MLP for each novel class, against its distance to the base classes."""
    distance = np.array([entry["distance"] for entry in classes])
    gain = 100 * np.array([entry["gain"]["mean"] for entry in classes])
    spread = 100 * np.array([entry["gain"]["ci95"] or 0 for entry in classes])
    with figure(6.4, 4.4) as (fig, save):
        axes = fig.subplots()
        axes.axhline(0, color="#888888", linewidth=0.8)
        axes.errorbar(distance, gain, yerr=spread, fmt="o", color=COLOURS[0], capsize=2, markersize=4)
        label = "one point a novel class"
        if len(classes) > 2 and gain.std() > 0 and distance.std() > 0:
            slope, at = np.polyfit(distance, gain, 1)
            ends = np.array([distance.min(), distance.max()])
            related = float(np.corrcoef(distance, gain)[0, 1])
            axes.plot(ends, slope * ends + at, "--", color=COLOURS[1])
            label += f"; correlation {related:+.2f}"
        axes.set_xlabel("distance to the base classes: 1 − mean cosine to the 10 nearest")
        axes.set_ylabel("wDAE-GNN − wDAE-MLP, points")
        axes.set_title(f"{n_shot} shot{'s' if n_shot > 1 else ''}; {label}")
        return save(folder, "gnn-gain-by-distance")
