"""A model as a plain matrix and bias: ``softmax(z @ weight.T + bias)``, z the feature in its space."""

from __future__ import annotations

from pathlib import Path

import torch

from wdae.classifier.model import Model
from wdae.export.module import metadata
from wdae.storage.tensors import save_tensors


def export_linear(model: Model, path: str | Path) -> Path:
    """Write ``weight`` ``[C, D]`` and ``bias`` ``[C]`` to a safetensors file, class names in its metadata.

    ``power`` and ``centre`` ``[D]`` bring a feature x into the space: unit(unit(sign(x) |x|^power) - centre).
    Ten lines of NumPy use it: see docs/guides/deploy.md.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from pathlib import Path
    >>> from wdae.classifier import BaseKnowledge
    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> model = Model(base)
    >>> from wdae.storage.tensors import load_tensors
    >>> file = export_linear(model, Path(place.name) / "model.safetensors")
    >>> {name: list(tensor.shape) for name, tensor in sorted(load_tensors(file).items())}
    {'bias': [2], 'centre': [4], 'power': [], 'weight': [2, 4]}
    """
    head = model.head
    tensors = {
        "weight": head.matrix,
        "bias": head.offsets,
        "power": torch.tensor(1.0 if head.space is None else head.space.power),
        "centre": torch.zeros(model.base.dim) if head.space is None else head.space.centre,
    }
    save_tensors(path, tensors, metadata(model))
    return Path(path)
