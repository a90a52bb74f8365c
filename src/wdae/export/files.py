"""A model written as a plain matrix, an ONNX file or a TorchScript file.

The last two are compared with the model before they are handed over: a file that differs is not written.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from wdae.backbones.graphs import session as graph_session
from wdae.classifier.light.answers import Answers
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.classifier.predictions import answers_of
from wdae.errors import ModelError, StorageError
from wdae.export.graph import OPSET
from wdae.export.module import Part, export_module, metadata
from wdae.export.whole import PICTURE, Precision, describe, libraries, packed, quiet_export, whole_graph
from wdae.storage.files import atomic_file
from wdae.storage.tensors import save_tensors

TOLERANCE, TOLERANCE_WHOLE = 1e-4, 1e-3


class HeadOptions(TypedDict, total=False):
    """What the file is to answer: ``expect`` and ``only`` of :meth:`wdae.classifier.Model.head_for`."""

    expect: float | None
    only: str | Iterable[str] | None


def export_linear(model: Model, path: str | Path, **question: Unpack[HeadOptions]) -> Path:
    """Write ``softmax(z @ weight.T + bias)`` as a safetensors file, class names in its metadata.

    ``weight`` is ``[C, D]``, ``bias`` ``[C]``; ``power`` and ``centre`` ``[D]`` bring a feature x into the
    space of z: unit(unit(sign(x) |x|^power) - centre), or unit((unit(sign(x) |x|^power) - centre) @ whiten)
    where the model has ``whiten`` ``[D, D]``. Ten lines of NumPy use it: docs/guides/deploy.md.

    >>> import tempfile
    >>> from wdae import learn, synthetic_bank
    >>> from wdae.storage.tensors import load_tensors
    >>> model = learn(synthetic_bank(5, 0, 0, 12, 4, held_out_per_class=4), method="initial-estimate")
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = export_linear(model, Path(place) / "model.safetensors")
    ...     {name: list(tensor.shape) for name, tensor in sorted(load_tensors(file).items())}
    {'bias': [5], 'centre': [4], 'power': [], 'weight': [5, 4]}
    """
    head = model.head_for(**question)
    tensors = {
        "weight": head.matrix,
        "bias": head.offsets,
        "power": torch.tensor(1.0 if head.space is None else head.space.power),
        "centre": torch.zeros(model.base.dim) if head.space is None else head.space.centre,
    }
    if head.space is not None and head.space.whiten is not None:
        tensors["whiten"] = head.space.whiten
    save_tensors(path, tensors, metadata(head, model))
    return Path(path)


def export_onnx(
    model: Model,
    path: str | Path,
    part: Part = "auto",
    *,
    precision: Precision = "float32",
    false_alarms: float = 0.05,
    lean: bool = False,
    **question: Unpack[HeadOptions],
) -> Path:
    """Write an ONNX file: a picture of any size in; names, probabilities and "unknown" out.

    Its input ``picture`` is uint8 [height, width, 3], RGB and upright; outputs are ``name``,
    ``probabilities`` [C], ``unknown``, ``names`` [C], ``scores`` [C] and ``features`` [D]. A model without
    backbone takes ``features`` [B, D], and gives ``scores``, ``probabilities`` [B, C], ``unknown`` [B].

    Args:
        part: ``squares`` starts at batches of prepared squares, ``images`` [B, 3, S, S] from 0 to 1.
        precision: of the backbone's weights in the file: ``float16`` and ``int8`` are smaller, not faster.
        false_alarms: share of pictures of known classes that may be called unknown wrongly.
        lean: leave out what is needed to teach the model on.

    >>> import tempfile
    >>> from wdae import learn, synthetic_bank
    >>> model = learn(synthetic_bank(5, 0, 0, 12, 4, held_out_per_class=4), method="initial-estimate")
    >>> with tempfile.TemporaryDirectory() as place:
    ...     export_onnx(model, Path(place) / "model.onnx").name
    'model.onnx'
    """
    libraries()
    if part == "squares":
        return _export_squares(model, path, **question)
    if part == "whole" and model.backbone is None:
        raise ModelError("the model has no backbone to export; export the classifier alone")
    backbone = None if part == "classifier" else model.backbone
    head = model.head_for(**question)
    chosen = {} if question.get("only") is None else {"only": head.names}
    answers = answers_of(model).asked(expect=question.get("expect"), **chosen)
    proto = whole_graph(answers, backbone, false_alarms, precision)
    facts = metadata(head, model)
    facts |= describe(model, answers, backbone, false_alarms=false_alarms, precision=precision)
    if not lean and model.base.index is None:
        facts["model"] = packed(model)
    facts["sha256"] = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()  # the graph's
    with atomic_file(path) as temporary:
        _with_facts(proto, facts, temporary)
        _check_whole(temporary, answers, backbone, precision)
    return Path(path)


def _with_facts(proto: Any, facts: Mapping[str, str], path: Path) -> None:
    from onnx import helper

    helper.set_model_props(proto, dict(facts))
    path.write_bytes(proto.SerializeToString())


def _check_whole(
    path: Path,
    answers: Answers,
    backbone: PictureBackbone | None,
    precision: Precision,
) -> None:
    """Compare a file with the model on drawn pictures of three sizes, or on drawn features."""
    session, rng = graph_session(path.read_bytes()), np.random.default_rng(1)
    for tall, wide in ((97, 131), (160, 240), (33, 33)):
        if backbone is None:
            features = rng.normal(size=(3, answers.matrix.shape[1])).astype(np.float32)
            found = session.run(["probabilities"], {"features": features})[0]
        else:
            coarse = Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8))
            picture = np.asarray(coarse.resize((wide, tall), Image.Resampling.BICUBIC))
            found = session.run(["probabilities"], {PICTURE: picture})[0][None]
            square = torch.from_numpy(backbone.preprocessing(picture).copy()).permute(2, 0, 1)[None]
            with torch.no_grad():
                features = backbone.network(backbone.preprocessing.prepare(square)).numpy()
        scores = answers.scores(features).astype(np.float64)
        wanted = np.exp(scores - scores.max(1, keepdims=True))
        worst = float(np.abs(found - wanted / wanted.sum(1, keepdims=True)).max())
        most = TOLERANCE_WHOLE if precision == "float32" else 1.0
        if not worst <= most:
            raise StorageError(f"the exported file differs from the model by {worst:.2g} (more than {most})")


def _export_squares(model: Model, path: str | Path, **question: Unpack[HeadOptions]) -> Path:
    head = model.head_for(**question)
    module, name, items = export_module(model, head, "whole")
    with atomic_file(path) as temporary:
        _convert(module, name, items, temporary)
        import onnx

        proto = onnx.load(str(temporary))
        for node in proto.graph.node:
            del node.metadata_props[:]  # what wrote it, with paths of this machine
        _with_facts(proto, metadata(head, model), temporary)
        session = graph_session(temporary.read_bytes())

        def written(batch: Tensor) -> Sequence[Tensor]:
            return [torch.from_numpy(out) for out in session.run(None, {name: batch.numpy()})]

        _check(written, module, items)
    return Path(path)


def export_torchscript(
    model: Model, path: str | Path, part: Part = "auto", **question: Unpack[HeadOptions]
) -> Path:
    """Write a TorchScript file; class names travel in its extra file ``labels``.

    >>> import tempfile
    >>> from wdae import learn, synthetic_bank
    >>> model = learn(synthetic_bank(5, 0, 0, 12, 4, held_out_per_class=4), method="initial-estimate")
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = export_torchscript(model, Path(place) / "model.pt")
    ...     scores, probabilities = torch.jit.load(str(file))(torch.eye(4))
    >>> list(scores.shape)
    [4, 5]
    """
    head = model.head_for(**question)
    module, _, items = export_module(model, head, part)
    with atomic_file(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(module, items)
        torch.jit.save(traced, str(temporary), _extra_files=metadata(head, model))
        _check(torch.jit.load(str(temporary)), module, items)
    return Path(path)


@torch.no_grad()
def _check(written: Callable[[Tensor], Sequence[Tensor]], module: nn.Module, items: Tensor) -> None:
    """Compare a file's scores and probabilities with the module's, for batches of 1, 2 and 5."""
    generator = torch.Generator().manual_seed(1)
    for count in (1, 2, 5):
        batch = torch.rand(count, *items.shape[1:], generator=generator)
        pairs = zip(written(batch), module(batch), strict=True)
        worst = max(float((got - wanted).abs().max()) for got, wanted in pairs)
        if not worst <= TOLERANCE:
            raise StorageError(
                f"the exported file differs from the model by {worst:.2g} (more than {TOLERANCE}); not kept"
            )


def _convert(module: nn.Module, name: str, items: Tensor, path: Path) -> None:
    with quiet_export():
        torch.onnx.export(
            module,
            (items,),
            str(path),
            input_names=[name],
            output_names=["scores", "probabilities"],
            dynamic_shapes={name: {0: torch.export.Dim("batch", min=1)}},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
