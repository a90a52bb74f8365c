"""The part of an exported ONNX graph from a picture of any size to what the network takes.

The resampling is Pillow's, but for the last bit of a pixel in thousands: a matrix of weights for each axis,
whole numbers from 0 to 255 after each of the two passes.
"""

from __future__ import annotations

import math

import numpy as np

from wdae.backbones.preprocessing import Preprocessing
from wdae.errors import ModelError
from wdae.export.graph import Builder

_FINEST = 2**22  # weights are whole numbers of this part, as Pillow has them: all sums are exact
_REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0, "box": 0.5, "hamming": 1.0}


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
