"""The part of an exported ONNX graph from features to classes, and whether it is none of them.

It computes what :class:`wdae.classifier.light.answers.Answers` does.
"""

from __future__ import annotations

import math

import numpy as np

from wdae.calibration.familiarity import OUTLIER_SHARE, ROUNDING, Array, Familiarity, ends
from wdae.classifier.light.answers import Answers
from wdae.export.graph import Builder
from wdae.methods.records import interpolate

_NEVER = -3e38  # what no score and no familiarity is below


def add_answers(
    graph: Builder, features: str, answers: Answers, false_alarms: float, before: str = ""
) -> tuple[str, str, str]:
    """Scores and probabilities [B, C], and whether each is unknown [B], of features [B, D].

    Args:
        before: what their names begin with.
    """
    vectors = features
    if answers.space is None:
        vectors = _unit(graph, vectors)
    else:
        vectors = graph.op(
            "Sub", _powered(graph, vectors, answers.space.power), graph.const(answers.space.centre)
        )
        if answers.space.whiten is not None:
            vectors = graph.op("MatMul", vectors, graph.const(answers.space.whiten))
        vectors = _unit(graph, vectors)
    products = graph.op("MatMul", vectors, graph.const(answers.matrix.T, name="wdae.matrix"))
    scores = graph.op(
        "Add", products, graph.const(answers.offsets, name="wdae.offsets"), out=f"{before}scores"
    )
    chances = graph.op("Softmax", scores, out=f"{before}probabilities", axis=1)
    if answers.familiarity is not None:
        known = _familiar(graph, features, answers.familiarity)
        limit = max(answers.familiarity.threshold(false_alarms), _NEVER)
    elif answers.best_scores and false_alarms:
        likelier = np.concatenate([np.zeros(answers.n_base, np.float32), answers.prior])
        known = _largest(graph, graph.op("Sub", scores, graph.const(likelier)))
        limit = interpolate(answers.best_scores, false_alarms)
    else:
        known, limit = _largest(graph, scores), _NEVER
    return scores, chances, graph.op("Less", known, graph.const(limit), out=f"{before}unknown")


def _unit(graph: Builder, rows: str) -> str:
    squares = graph.op("ReduceSumSquare", rows, graph.const([1], np.int64), keepdims=1)
    length = graph.op("Max", graph.op("Sqrt", squares), graph.const(1e-12))
    return graph.op("Div", rows, length)


def _powered(graph: Builder, rows: str, power: float) -> str:
    if power != 1.0:
        sizes = graph.op("Pow", graph.op("Abs", rows), graph.const(power))
        rows = graph.op("Mul", graph.op("Sign", rows), sizes)
    return _unit(graph, rows)


def _largest(graph: Builder, rows: str) -> str:
    return graph.op("ReduceMax", rows, graph.const([1], np.int64), keepdims=0)


def _familiar(graph: Builder, features: str, known: Familiarity) -> str:
    """:meth:`wdae.calibration.familiarity.Familiarity.familiar`, [B]."""
    kept = known.kept
    rows = graph.op("Sub", _powered(graph, features, float(kept["power"])), graph.const(kept["centre"]))
    rows = graph.op("MatMul", rows, graph.const(kept["projection"]))
    if bool(kept["equal_length"]):
        rows = graph.op("Mul", _unit(graph, rows), graph.const(math.sqrt(kept["projection"].shape[1])))
    rows = graph.op("Div", rows, graph.const(kept["widths"]))
    squares = graph.op("Mul", rows, rows)
    total = 1 + kept["between"].astype(np.float64)
    around = graph.op("MatMul", squares, graph.const((0.5 / total)[:, None]))
    around = graph.op("Add", around, graph.const(0.5 * np.log(total).sum()))  # [B, 1]
    played = known.played
    as_base = as_added = graph.op("Mul", _largest(graph, around), graph.const(0))
    if len(known.means):
        ratios = _ratios(graph, rows, squares, around, known.means, known.counts, kept["between"])
        as_base = _share_below(
            graph, graph.op("Reshape", _largest(graph, ratios), graph.const([-1, 1], np.int64)), kept["known"]
        )
        as_base = _largest(graph, as_base)
    allowed = graph.op("Add", as_added, graph.const(1))
    if len(known.shots) and played:
        ratios = _ratios(graph, rows, squares, around, known.added, known.shots, kept["between"])
        at = [known.nearest(k) for k in known.shots.tolist()]
        shares = _share_below(graph, ratios, kept["own"][at])
        each = graph.op("Pow", shares, graph.const(kept["exponent"][at]))
        as_added = _largest(graph, each)
        best = graph.op("ArgMax", each, axis=1, keepdims=0)
        allowed = graph.op("Gather", graph.const(known.ordinary - ROUNDING), best)
    ordinary = graph.op("Add", graph.op("Mul", as_base, graph.const(0)), graph.const(1))
    if "outlier" in kept:
        along = graph.op("MatMul", _unit(graph, features), graph.const(-kept["outlier"][:, None]))
        ordinary = _largest(graph, _share_below(graph, along, kept["outlying"]))
        least, unit_of = ends(kept["outlying"][0])
        beyond = graph.op(
            "Div", graph.op("Sub", _largest(graph, along), graph.const(least)), graph.const(unit_of)
        )
        ordinary = graph.op("Add", ordinary, graph.op("Min", beyond, graph.const(0)))
    passes = graph.op(
        "And", graph.op("GreaterOrEqual", as_added, as_base), graph.op("GreaterOrEqual", ordinary, allowed)
    )
    ordinary = graph.op("Where", passes, graph.const(1), ordinary)
    likely = graph.op("Max", as_base, as_added)
    return graph.op("Min", likely, graph.op("Div", ordinary, graph.const(OUTLIER_SHARE)))


def _ratios(
    graph: Builder, rows: str, squares: str, around: str, means: Array, counts: Array, between: Array
) -> str:
    """:meth:`wdae.nn.plda.PLDA.ratios`, [B, C]."""
    means, between = means.astype(np.float64), between.astype(np.float64)
    held = counts[:, None] * between
    inverse = 1 / (1 + between / (held + 1))
    expected = means * (held / (held + 1))
    constant = 0.5 * (np.log(inverse) - expected * expected * inverse).sum(1)
    linear = graph.op("MatMul", rows, graph.const((expected * inverse).T))
    square = graph.op("MatMul", squares, graph.const(-0.5 * inverse.T))
    classes = graph.op("Add", graph.op("Add", linear, square), graph.const(constant))
    return graph.op("Add", classes, around)


def _share_below(graph: Builder, values: str, curves: Array) -> str:
    """The share of each distribution, given by its quantiles [n, Q], below each of the values [B, n]."""
    curves = curves.astype(np.float64)
    steps = np.diff(curves, axis=1).clip(min=1e-12)
    raised = graph.op("Unsqueeze", values, graph.const([2], np.int64))  # [B, n, 1]
    parts = graph.op("Div", graph.op("Sub", raised, graph.const(curves[:, :-1])), graph.const(steps))
    parts = graph.op("Clip", parts, graph.const(0), graph.const(1))
    return graph.op("ReduceMean", parts, graph.const([2], np.int64), keepdims=0)
