"""Our own backbones as graphs of ONNX, so that they run where torch is not, or has not been loaded.

A graph names the network's tensors and has none of them: it serves every width and every side of pictures.
Those in ``assets/graphs`` are made so (``scripts/make_graphs.py``); exports are too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from wdae.backbones.base import Backbone
from wdae.backbones.graphs import FEATURES, IMAGES, OPSET
from wdae.errors import MissingExtraError, ModelError

_IR = 8  # the format's version that goes with the opset


class _Tracer(fx.Tracer):
    """Convolutions that pad by themselves are one step too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


class UnwritableError(ModelError):
    """A network has a step that this module does not know."""


def weightless_graph(backbone: Backbone) -> Any:
    """The graph ``images`` [B, 3, S, S] to ``features`` [B, D] as a ``ModelProto``.

    Its weights are named as in the network's state, and are not in it.

    >>> from wdae.backbones import build
    >>> [node.op_type for node in weightless_graph(build("conv4-64", image_size=16)).graph.node][:4]
    ['Conv', 'BatchNormalization', 'MaxPool', 'Relu']
    """
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "a backbone as an ONNX graph") from error
    nodes = list(_nodes(backbone.eval(), helper.make_node))
    sides: list[str | int | None] = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["batch", "features"])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="wdae")
    made.ir_version = _IR
    return made


def _nodes(backbone: Backbone, node: Callable[..., Any]) -> Iterator[Any]:
    value = IMAGES
    for number, stage in enumerate(backbone.stages):
        for made in _stage_nodes(stage, f"stages.{number}", value, node):
            value = made.output[0]
            yield made
    if backbone.pool == "flatten":
        yield node("Flatten", [value], [FEATURES], axis=1)
    else:
        yield node("GlobalAveragePool", [value], ["map"])
        yield node("Flatten", ["map"], [FEATURES], axis=1)


def _stage_nodes(stage: nn.Module, name: str, given: str, node: Callable[..., Any]) -> Iterator[Any]:
    """The steps of a stage; values are named after the stage."""
    values: dict[fx.Node, str] = {}
    try:
        steps = _Tracer().trace(stage).nodes
    except Exception as error:  # whatever a network of others does with what is no tensor
        raise UnwritableError(f"no graph is written of {type(stage).__name__}: {error}") from error
    for step in steps:
        inputs = [values[one] for one in step.all_input_nodes]
        out = f"{name}/{step.name}"
        if step.op == "placeholder":
            values[step] = given
        elif step.op == "output":
            return
        elif step.op == "call_module":
            made = _module(stage.get_submodule(str(step.target)), f"{name}.{step.target}", inputs, out, node)
            values[step] = inputs[0] if made is None else out
            if made is not None:
                yield made
        elif step.target in (operator.add, operator.iadd):
            values[step] = out
            yield node("Add", inputs, [out])
        elif step.target is F.relu:
            values[step] = out
            yield node("Relu", inputs, [out])
        elif step.target is F.leaky_relu:
            values[step] = out
            yield node("LeakyRelu", inputs, [out], alpha=float(step.kwargs["negative_slope"]))
        elif step.target is F.max_pool2d:
            values[step] = out
            yield _pool(int(step.args[1]), None, 0, inputs, out, node)
        else:
            raise UnwritableError(f"no graph is written of {step.target} in {name}")


def _pool(
    side: int, stride: int | None, pad: int, inputs: list[str], out: str, node: Callable[..., Any]
) -> Any:
    steps = [stride or side] * 2
    return node("MaxPool", inputs, [out], kernel_shape=[side] * 2, strides=steps, pads=[pad] * 4)


def _module(part: nn.Module, name: str, inputs: list[str], out: str, node: Callable[..., Any]) -> Any | None:
    if isinstance(part, nn.Identity | nn.Dropout):
        return None
    if isinstance(part, nn.Conv2d):
        # One that pads by itself keeps ceil(side / stride) pixels: what ONNX calls SAME_UPPER.
        pads: dict[str, Any] = {"pads": [int(part.padding[0]), int(part.padding[1])] * 2}
        if type(part) is not nn.Conv2d:
            pads = {"auto_pad": "SAME_UPPER"}
        weights = [f"{name}.weight", *([f"{name}.bias"] if part.bias is not None else [])]
        return node(
            "Conv",
            [*inputs, *weights],
            [out],
            kernel_shape=list(part.kernel_size),
            strides=list(part.stride),
            group=part.groups,
            **pads,
        )
    if isinstance(part, nn.BatchNorm2d):
        weights = [f"{name}.{one}" for one in ("weight", "bias", "running_mean", "running_var")]
        return node("BatchNormalization", [*inputs, *weights], [out], epsilon=part.eps)
    if isinstance(part, nn.ReLU6):
        return node("Clip", [*inputs, "zero", "six"], [out])
    if isinstance(part, nn.ReLU):
        return node("Relu", inputs, [out])
    if isinstance(part, nn.LeakyReLU):
        return node("LeakyRelu", inputs, [out], alpha=part.negative_slope)
    if isinstance(part, nn.MaxPool2d):
        side, stride, pad = (int(str(one)) for one in (part.kernel_size, part.stride, part.padding))
        return _pool(side, stride, pad, inputs, out, node)
    raise UnwritableError(f"no graph is written of {type(part).__name__} {name}")
