"""A model as one ONNX file: a picture of any size in; names, probabilities and "unknown" out.

The file says of itself what it is, and carries what is needed to teach the model on.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import logging
import math
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from wdae.backbones.as_onnx import UnwritableError, weightless_graph
from wdae.backbones.base import Backbone
from wdae.backbones.graphs import CONSTANTS, FEATURES, IMAGES
from wdae.backbones.onnx_file import OnnxNetwork
from wdae.calibration.familiarity import Array
from wdae.classifier.light.answers import Answers
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.classifier.store import load, save
from wdae.classifier.summary import few_held_out, unknown_in_words
from wdae.config.shipped import EMBEDDED
from wdae.errors import MissingExtraError, ModelError, StorageError
from wdae.export.about import MODEL, MOST_BYTES, read_export
from wdae.export.answers_graph import add_answers
from wdae.export.graph import IR, OPSET, Builder, initializers_of
from wdae.export.preprocessing_graph import add_preprocessing
from wdae.version import __version__

FORMAT = "wdae-export 2"
PICTURE = "picture"
Precision = Literal["float32", "float16", "int8"]
_BACKBONE = "backbone"
_SMALL = 64  # numbers of a tensor, or behind one output, that are not worth less precision


def libraries() -> None:
    """Refuse to go on without the libraries that write ONNX files."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", "onnx", "exporting to ONNX") from None


def whole_graph(
    answers: Answers, backbone: PictureBackbone | None, false_alarms: float, precision: Precision
) -> Any:
    """The graph from a picture on; from features on where there is no backbone."""
    from onnx import TensorProto, helper

    graph = Builder("wdae/")
    n_classes, dim = answers.matrix.shape
    if backbone is None:
        given = helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["batch", dim])
        add_answers(graph, FEATURES, answers, false_alarms)
        shapes: dict[str, Any] = {
            "scores": (TensorProto.FLOAT, ["batch", n_classes]),
            "probabilities": (TensorProto.FLOAT, ["batch", n_classes]),
            "unknown": (TensorProto.BOOL, ["batch"]),
        }
        return _model(graph, given, shapes)
    given = helper.make_tensor_value_info(PICTURE, TensorProto.UINT8, ["height", "width", 3])
    images = add_preprocessing(graph, PICTURE, backbone.preprocessing)
    found = _add_backbone(graph, images, backbone, precision)
    scores, chances, unknown = add_answers(graph, found, answers, false_alarms, "wdae/")
    names, first = graph.names(answers.names, "wdae.names"), graph.const([0], np.int64)
    best = graph.op("ArgMax", chances, axis=1, keepdims=0)
    graph.op("Squeeze", graph.op("Gather", names, best), first, out="name")
    graph.op("Identity", names, out="names")
    squeezed = {"probabilities": chances, "unknown": unknown, "scores": scores, FEATURES: found}
    for out, value in squeezed.items():  # of one picture nothing has a batch
        graph.op("Squeeze", value, first, out=out)
    shapes = {
        "name": (TensorProto.STRING, []),
        "probabilities": (TensorProto.FLOAT, [n_classes]),
        "unknown": (TensorProto.BOOL, []),
        "names": (TensorProto.STRING, [n_classes]),
        "scores": (TensorProto.FLOAT, [n_classes]),
        FEATURES: (TensorProto.FLOAT, [dim]),
    }
    return _model(graph, given, shapes)


def _model(graph: Builder, given: Any, shapes: Mapping[str, Any]) -> Any:
    from onnx import checker, helper

    outputs = [helper.make_tensor_value_info(name, *shape) for name, shape in shapes.items()]
    made = helper.make_graph(graph.nodes, "wdae", [given], outputs, initializer=graph.tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="wdae")
    model.ir_version, model.producer_version = IR, __version__
    checker.check_model(model)
    return model


def _add_backbone(graph: Builder, images: str, backbone: PictureBackbone, precision: Precision) -> str:
    """The backbone's nodes and weights; the name of the features [1, D]."""
    network = backbone.network
    try:
        proto = weightless_graph(network).graph
        proto.node[-1].output[0] = "wdae/features"
        named = {value for node in proto.node for value in node.input}
        state = network.state_dict() | {name: torch.tensor(value) for name, value in CONSTANTS.items()}
        weights = {name: value.numpy() for name, value in state.items() if name in named}
        given, found = IMAGES, "wdae/features"
    except UnwritableError:
        proto = _foreign(network)
        weights = dict(initializers_of(proto))
        given, found = proto.input[0].name, proto.output[0].name
    for node in proto.node:
        del node.metadata_props[:]  # what wrote it, with paths of this machine
    graph.op("Identity", images, out=given)
    for name, value in weights.items():
        _add_weights(graph, name, value, precision)
    graph.nodes += list(proto.node)
    return found


def _add_weights(graph: Builder, name: str, value: Array, precision: Precision) -> None:
    """A backbone's weights: kept with fewer bits where asked for, always computed with as float32.

    Where few numbers stand behind an output, as in a first layer and in convolutions of one channel each,
    nothing evens out the errors of whole numbers, and there is little to save: they stay as they are.
    """
    behind = value.size if precision == "float16" else math.prod(value.shape[1:])
    if value.dtype != np.float32 or value.ndim < 2 or behind < _SMALL or precision == "float32":
        graph.const(value, value.dtype if value.dtype.kind != "f" else np.float32, name)
    elif precision == "float16":
        kept = graph.const(value, np.float16, f"{name}.float16")
        graph.op("Cast", kept, out=name, to=1)
    else:  # one scale for each output
        scale = np.abs(value).reshape(len(value), -1).max(1).clip(min=1e-12) / 127
        whole = np.rint(value / scale.reshape(-1, *[1] * (value.ndim - 1)))
        parts = [
            graph.const(whole, np.int8, f"{name}.int8"),
            graph.const(scale, np.float32, f"{name}.scale"),
            graph.const(np.zeros(len(value)), np.int8, f"{name}.zero"),
        ]
        graph.op("DequantizeLinear", *parts, out=name, axis=0)


def _foreign(network: Backbone) -> Any:
    """The graph of a backbone of others, with its weights; opset as ours."""
    import onnx
    from onnx import compose, version_converter

    stage = network.stages[0]
    if isinstance(stage, OnnxNetwork):
        proto = onnx.load_from_string(stage.content.numpy().tobytes())
        chosen = stage.chosen(stage.session())
        for place in reversed(range(len(proto.graph.output))):
            if proto.graph.output[place].name != chosen:
                del proto.graph.output[place]
        if proto.opset_import[0].version != OPSET:
            proto = version_converter.convert_version(proto, OPSET)
    else:
        side = network.image_size
        with quiet_export():
            program = torch.onnx.export(
                network.eval(),
                (torch.zeros(1, 3, side, side),),
                input_names=["network_images"],
                output_names=["network_features"],
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        assert program is not None
        proto = program.model_proto
    return compose.add_prefix(proto, "network/").graph


@contextmanager
def quiet_export() -> Iterator[None]:
    """The exporter prints its progress on stdout and warns of its own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def describe(
    model: Model,
    answers: Answers,
    backbone: PictureBackbone | None,
    *,
    false_alarms: float = 0.05,
    precision: Precision = "float32",
) -> dict[str, str]:
    """What a file says of itself: JSON values, each as text."""
    figures, detects = model.base.calibration.figures, answers.familiarity is not None
    facts: dict[str, Any] = {
        "unknown": {
            "in_words": unknown_in_words(figures, detects, few_held_out(model.base.info)),
            "false_alarms": false_alarms,
            "rule": "the detector of the model, in the graph" if detects else "the best score, in the graph",
        },
        "written_by": f"wdae {__version__}",
        "opset": OPSET,
        "precision": precision,
        "history": [change.describe() for change in model.history.line()],
    }
    if backbone is not None:
        facts[_BACKBONE] = {
            "name": backbone.name,
            "weights_sha256": backbone.card.get("weights_sha256"),
            "features": model.base.dim,
        }
    return {"format": FORMAT} | {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}


def packed(model: Model) -> str:
    """The model's folder as text, to be taught on from an export: without pictures, and without a backbone
    that the graph has.
    """
    light = copy.copy(model)
    light.examples = [replace(example, picture=None) for example in model.examples]
    if model.backbone is not None and model.backbone.tensors is not None:
        light.backbone = PictureBackbone(model.backbone.card)
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(data, "w") as archive:
        save(light, Path(place) / "model")
        for file in sorted((Path(place) / "model").iterdir()):
            archive.write(file, file.name)
    return base64.b64encode(data.getvalue()).decode()


def open_export(path: str | Path) -> Model:
    """The model that an exported file was made of, to be taught on; pictures of examples are not in it."""
    proto, known = read_export(path)
    if MODEL not in known:
        raise ModelError(f"{path} was exported to be used alone (--lean); it cannot be taught on")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "model"
        folder.mkdir()
        try:
            with zipfile.ZipFile(io.BytesIO(base64.b64decode(known[MODEL], validate=True))) as archive:
                for entry in archive.infolist():
                    if "/" in entry.filename or "\\" in entry.filename or entry.filename.startswith("."):
                        raise ValueError(f"a file {entry.filename!r}")
                    if entry.file_size > MOST_BYTES:
                        raise ValueError(f"a file of {entry.file_size} bytes")
                    (folder / entry.filename).write_bytes(archive.read(entry))
        except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
            raise StorageError(f"{path} is altered: {error}; export the model again") from error
        model = load(folder)
        model = copy.copy(model)
    model.stored = None
    if model.backbone is not None and model.backbone.name != EMBEDDED:
        weights = _weights(initializers_of(proto.graph))
        model.backbone = _with_weights(model.backbone.card, weights)
    return model


def _with_weights(card: dict[str, Any], weights: Mapping[str, Array]) -> PictureBackbone:
    name = str(card["backbone"])
    if ":" in name:
        raise ModelError(
            f"backbone {name!r} is part of the export's graph, and cannot be taken out of it; learn from the"
            " model's folder"
        )
    own = {key: torch.from_numpy(np.array(value)) for key, value in weights.items() if "wdae" not in key}
    tensors = {key: value for key, value in own.items() if key.startswith("stages.")}
    return PictureBackbone(card, tensors)


def _weights(kept: Mapping[str, Array]) -> dict[str, Array]:
    """Weights as float32, however they were kept."""
    found = {name: value for name, value in kept.items() if value.dtype == np.float32}
    for name, value in kept.items():
        if name.endswith(".float16"):
            found[name.removesuffix(".float16")] = value.astype(np.float32)
        elif name.endswith(".int8"):
            own = name.removesuffix(".int8")
            scale = kept[f"{own}.scale"].reshape(-1, *[1] * (value.ndim - 1))
            found[own] = value.astype(np.float32) * scale
    return found
