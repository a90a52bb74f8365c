"""A model as an ONNX file, checked against torch before it is handed over."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wdae.classifier.model import Model
from wdae.errors import MissingExtraError, StorageError
from wdae.export.module import Part, export_module, metadata
from wdae.storage.files import atomic_file

TOLERANCE = 1e-4


def export_onnx(model: Model, path: str | Path, part: Part = "auto") -> Path:
    """Write an ONNX file with any number of items a batch and the class names in its metadata.

    Its outputs ``scores`` and ``probabilities`` are compared with torch's in onnxruntime, for batches of 1, 2
    and 5; a file that differs by more than 1e-4 is not kept.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from pathlib import Path
    >>> from wdae.classifier import BaseKnowledge
    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> model = Model(base)
    >>> file = export_onnx(model, Path(place.name) / "model.onnx")
    >>> import onnxruntime
    >>> session = onnxruntime.InferenceSession(str(file))
    >>> session.run(["scores"], {"features": np.eye(4, dtype=np.float32)[:1]})[0].tolist()
    [[10.0, 0.0]]
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", "onnx", "exporting to ONNX") from None
    module, name, items = export_module(model, part)
    with atomic_file(path) as temporary:
        _convert(module, name, items, temporary)
        proto = onnx.load(str(temporary))
        for key, value in metadata(model).items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        onnx.save(proto, str(temporary))
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        _check(session, module, name, items)
    return Path(path)


def _convert(module: nn.Module, name: str, items: Tensor, path: Path) -> None:
    # The exporter tells its progress on stdout and warns of its own internals.
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


def _check(session: Any, module: nn.Module, name: str, items: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    for count in (1, 2, 5):
        batch = torch.rand(count, *items.shape[1:], generator=generator)
        with torch.no_grad():
            wanted = module(batch)
        got = session.run(["scores", "probabilities"], {name: batch.numpy()})
        worst = max(float(np.abs(g - w.numpy()).max()) for g, w in zip(got, wanted, strict=True))
        if not worst <= TOLERANCE:
            raise StorageError(
                f"the exported file differs from the model by {worst:.2g} (more than {TOLERANCE}); not kept"
            )
