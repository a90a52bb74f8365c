"""A model as a plain matrix and bias: ``softmax(x/|x| @ weight.T + bias)``."""

from __future__ import annotations

from pathlib import Path

from wdae.export.module import metadata
from wdae.model.model import Model
from wdae.storage import save_tensors


def export_linear(model: Model, path: str | Path) -> Path:
    """Write ``weight`` ``[C, D]`` and ``bias`` ``[C]`` to a safetensors file, class names in its metadata.

    Ten lines of NumPy use it: see docs/guides/deploy.md.
    """
    head = model.head
    save_tensors(path, {"weight": head.matrix, "bias": head.offsets}, metadata(model))
    return Path(path)
