"""A model as a plain matrix and bias: ``softmax(x/|x| @ weight.T + bias)``."""

from __future__ import annotations

from pathlib import Path

from wdae.classifier.model import Model
from wdae.export.module import metadata
from wdae.storage.tensors import save_tensors


def export_linear(model: Model, path: str | Path) -> Path:
    """Write ``weight`` ``[C, D]`` and ``bias`` ``[C]`` to a safetensors file, class names in its metadata.

    Ten lines of NumPy use it: see docs/guides/deploy.md.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> import torch
    >>> from pathlib import Path
    >>> from wdae.methods.calibration import Calibration
    >>> from wdae.classifier import Ground
    >>> model = Model(Ground(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), Calibration(gain=10.0)))
    >>> from wdae.storage.tensors import load_tensors
    >>> file = export_linear(model, Path(place.name) / "model.safetensors")
    >>> {name: list(tensor.shape) for name, tensor in sorted(load_tensors(file).items())}
    {'bias': [2], 'weight': [2, 4]}
    """
    head = model.head
    save_tensors(path, {"weight": head.matrix, "bias": head.offsets}, metadata(model))
    return Path(path)
