"""An ONNX graph under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wdae.calibration.familiarity import Array

OPSET = 18
IR = 8


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


def initializers_of(graph: Any) -> Mapping[str, Array]:
    """The constants of a graph, by name."""
    from onnx import numpy_helper

    return {one.name: numpy_helper.to_array(one) for one in graph.initializer}
