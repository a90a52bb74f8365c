"""The pieces of an exported ONNX graph: from a picture of any size to a class, and whether it is none.

The resampling is Pillow's, but for the last bit of a pixel in thousands: a matrix of weights for each axis,
whole numbers from 0 to 255 after each of the two passes. The rest is
:class:`wdae.classifier.light.answers.Answers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wdae.backbones.preprocessing import Preprocessing
from wdae.calibration.familiarity import OUTLIER_SHARE, Array, Familiarity
from wdae.classifier.light.answers import Answers
from wdae.errors import ModelError
from wdae.methods.records import interpolate

OPSET = 18
IR = 8
_FINEST = 2**22  # weights are whole numbers of this part, as Pillow has them: all sums are exact
_REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0, "box": 0.5, "hamming": 1.0}


class Builder:
    """A graph under construction: every step gives the name of its result."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._prefix, self._count = prefix, 0

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """One step."""
        from onnx import helper

        name = out or self._name(kind.lower())
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def const(self, value: Any, dtype: Any = np.float32, name: str | None = None) -> str:
        """A constant."""
        from onnx import numpy_helper

        name = name or self._name("constant")
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype=dtype, order="C"), name))
        return name

    def names(self, values: Sequence[str], name: str) -> str:
        """A constant of texts."""
        from onnx import TensorProto, helper

        texts: Any = [value.encode() for value in values]
        self.tensors.append(helper.make_tensor(name, TensorProto.STRING, [len(values)], texts))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """A value as another kind of number."""
        from onnx import helper

        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._prefix}{kind}_{self._count}"


def add_preprocessing(graph: Builder, picture: str, rule: Preprocessing) -> str:
    """From ``picture`` uint8 [height, width, 3] to what the network takes, float32 [1, 3, S, S]."""
    if rule.interpolation == "nearest":
        raise ModelError("pictures resized by 'nearest' are not exported whole; export --part squares")
    double = np.float64
    shape = graph.op("Shape", picture)
    sides = [graph.op("Gather", shape, graph.const(axis, np.int64)) for axis in (0, 1)]
    short = graph.op("Min", *sides)
    side, whole = rule.image_size, rule.resize or rule.image_size
    planes = graph.op("Transpose", picture, perm=[2, 0, 1])
    weights = []
    for axis, length in enumerate(sides):
        if rule.fit == "square":
            span = graph.op("Mul", graph.cast(short, double), graph.const(side / whole, double))
            scale = graph.op("Div", span, graph.const(side, double))
            spare = graph.op("Sub", graph.cast(length, double), span)
            start = graph.op("Div", spare, graph.const(2, double))
        else:
            resized = graph.const(whole, np.int64)
            if rule.fit == "shortest":
                resized = graph.op("Div", graph.op("Mul", resized, length), short)
            scale = graph.op("Div", graph.cast(length, double), graph.cast(resized, double))
            spare = graph.op("Sub", graph.cast(resized, double), graph.const(side, double))
            cut = graph.op("Div", spare, graph.const(2, double))
            cut = graph.op("Round" if rule.rounding == "even" else "Floor", cut)
            start = graph.op("Mul", cut, scale)
        low, high, matrix = _resampling(graph, start, scale, length, side, rule.interpolation)
        weights.append(matrix)
        ends = [graph.op("Unsqueeze", one, graph.const([0], np.int64)) for one in (low, high)]
        planes = graph.op("Slice", planes, *ends, graph.const([axis + 1], np.int64))
    down, across = weights
    values = graph.cast(planes, double)
    values = _rounded(graph, graph.op("MatMul", values, graph.op("Transpose", across, perm=[1, 0])))
    values = _rounded(graph, graph.op("MatMul", down, values))
    values = graph.op("Div", graph.cast(values, np.float32), graph.const(255))
    if rule.value_range != 1:
        values = graph.op("Mul", values, graph.const(rule.value_range))
    values = graph.op("Sub", values, graph.const(np.reshape(rule.mean, (3, 1, 1))))
    values = graph.op("Div", values, graph.const(np.reshape(rule.std, (3, 1, 1))))
    return graph.op("Unsqueeze", values, graph.const([0], np.int64))


def _rounded(graph: Builder, values: str) -> str:
    """Whole numbers from 0 to 255, halves up."""
    values = graph.op("Floor", graph.op("Add", values, graph.const(0.5, np.float64)))
    return graph.op("Clip", values, graph.const(0, np.float64), graph.const(255, np.float64))


def _resampling(
    graph: Builder, start: str, scale: str, length: str, side: int, interpolation: str
) -> tuple[str, str, str]:
    """Of one axis: the first pixel that counts, the one past the last, and their weights [side, pixels].

    Args:
        start: where the pixels that are shown begin, ``scale``: how many of them make one, both float64.
        length: of the axis, int64.
    """
    double = np.float64
    one = graph.const(1, double)
    spread = graph.op("Max", scale, one)  # wider than a pixel when shrinking, which is the antialiasing
    reach = graph.op("Mul", spread, graph.const(_REACH[interpolation] + 1, double))
    end = graph.op("Add", start, graph.op("Mul", scale, graph.const(side, double)))
    last = graph.cast(length, double)
    zero = graph.const(0, double)
    low = graph.op("Max", graph.op("Floor", graph.op("Sub", start, reach)), zero)
    high = graph.op("Min", graph.op("Ceil", graph.op("Add", end, reach)), last)
    steps = graph.const(np.arange(side)[:, None] + 0.5, double)
    centres = graph.op("Add", start, graph.op("Mul", steps, scale))  # [S, 1]
    pixels = graph.op("Range", low, high, one)
    middle = graph.op("Add", pixels, graph.const(0.5, double))
    apart = graph.op("Div", graph.op("Sub", middle, centres), spread)
    if interpolation == "box":
        half = graph.const(0.5, double)
        above = graph.op("Greater", apart, graph.op("Neg", half))
        weights = graph.cast(graph.op("And", above, graph.op("LessOrEqual", apart, half)), double)
    else:
        weights = _filter(graph, graph.op("Abs", apart), interpolation)
    total = graph.op("ReduceSum", weights, graph.const([1], np.int64), keepdims=1)
    weights = graph.op("Div", weights, total)
    weights = graph.op("Round", graph.op("Mul", weights, graph.const(_FINEST, double)))
    weights = graph.op("Div", weights, graph.const(_FINEST, double))
    return graph.cast(low, np.int64), graph.cast(high, np.int64), weights


def _filter(graph: Builder, x: str, name: str) -> str:
    """The weight of a pixel at a distance, float64: Pillow's filters."""
    double = np.float64

    def number(value: float) -> str:
        return graph.const(value, double)

    def within(limit: float, value: str) -> str:
        inside = graph.op("Less", x, number(limit))
        return graph.op("Where", inside, value, number(0))

    def polynomial(*factors: float) -> str:
        value = number(factors[0])
        for factor in factors[1:]:
            value = graph.op("Add", graph.op("Mul", value, x), number(factor))
        return value

    def sinc(scaled: str) -> str:
        angle = graph.op("Max", graph.op("Mul", scaled, number(math.pi)), number(1e-9))
        return graph.op("Div", graph.op("Sin", angle), angle)

    if name == "bilinear":
        return graph.op("Max", graph.op("Sub", number(1), x), number(0))
    if name == "hamming":
        cosine = graph.op("Cos", graph.op("Mul", x, number(math.pi)))
        window = graph.op("Add", number(0.54), graph.op("Mul", number(0.46), cosine))
        return within(1, graph.op("Mul", sinc(x), window))
    if name == "bicubic":  # a = -0.5
        inner = graph.op("Less", x, number(1))
        outer = within(2, polynomial(-0.5, 2.5, -4, 2))
        return graph.op("Where", inner, polynomial(1.5, -2.5, 0, 1), outer)
    third = graph.op("Div", x, number(3))
    return within(3, graph.op("Mul", sinc(x), sinc(third)))  # lanczos


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
        limit = answers.familiarity.threshold(false_alarms)
    elif answers.best_scores and false_alarms:
        likelier = np.concatenate([np.zeros(answers.n_base, np.float32), answers.prior])
        known = _largest(graph, graph.op("Sub", scores, graph.const(likelier)))
        limit = interpolate(answers.best_scores, false_alarms)
    else:
        known, limit = _largest(graph, scores), -3e38
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
        allowed = graph.op("Gather", graph.const(known.ordinary), best)
    ordinary = graph.op("Add", graph.op("Mul", as_base, graph.const(0)), graph.const(1))
    if "outlier" in kept:
        along = graph.op("MatMul", _unit(graph, features), graph.const(-kept["outlier"][:, None]))
        ordinary = _largest(graph, _share_below(graph, along, kept["outlying"]))
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


def initializers_of(graph: Any) -> Mapping[str, Array]:
    """The constants of a graph, by name."""
    from onnx import numpy_helper

    return {one.name: numpy_helper.to_array(one) for one in graph.initializer}
