"""A model written as a plain matrix, an ONNX file or a TorchScript file.

The last two are compared with the model before they are handed over: a file that differs is not written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from wdae.classifier.model import Model
from wdae.errors import MissingExtraError, StorageError
from wdae.export.module import Part, export_module, metadata
from wdae.storage.files import atomic_file
from wdae.storage.tensors import save_tensors

TOLERANCE = 1e-4


class Question(TypedDict, total=False):
    """What the file is to answer: ``expect`` and ``only`` of :meth:`wdae.classifier.Model.head_for`."""

    expect: float | None
    only: str | Iterable[str] | None


def export_linear(model: Model, path: str | Path, **question: Unpack[Question]) -> Path:
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


def export_onnx(model: Model, path: str | Path, part: Part = "auto", **question: Unpack[Question]) -> Path:
    """Write an ONNX file with any number of items a batch and the class names in its metadata.

    Its outputs are ``scores`` and ``probabilities``.

    >>> import tempfile
    >>> from wdae import learn, synthetic_bank
    >>> model = learn(synthetic_bank(5, 0, 0, 12, 4, held_out_per_class=4), method="initial-estimate")
    >>> with tempfile.TemporaryDirectory() as place:
    ...     export_onnx(model, Path(place) / "model.onnx").name
    'model.onnx'
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", "onnx", "exporting to ONNX") from None
    head = model.head_for(**question)
    module, name, items = export_module(model, head, part)
    with atomic_file(path) as temporary:
        _convert(module, name, items, temporary)
        proto = onnx.load(str(temporary))
        for key, value in metadata(head, model).items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(proto, str(temporary))
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])

        def written(batch: Tensor) -> Sequence[Tensor]:
            return [torch.from_numpy(out) for out in session.run(None, {name: batch.numpy()})]

        _check(written, module, items)
    return Path(path)


def export_torchscript(
    model: Model, path: str | Path, part: Part = "auto", **question: Unpack[Question]
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
    # The exporter prints its progress on stdout and warns of its own internals.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (items,),
            str(path),
            input_names=[name],
            output_names=["scores", "probabilities"],
            dynamic_shapes={name: {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only errors of a library's log: libraries that a model does not need may be missing."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
