"""A model as a TorchScript file, for programs with torch and without this library."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from wdae.classifier.model import Model
from wdae.errors import StorageError
from wdae.export.module import Part, export_module, metadata
from wdae.storage.files import atomic_file

TOLERANCE = 1e-4


def export_torchscript(model: Model, path: str | Path, part: Part = "auto") -> Path:
    """Write a TorchScript file; class names travel in its extra file ``labels``.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from pathlib import Path
    >>> from wdae.classifier import BaseKnowledge
    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> model = Model(base)
    >>> file = export_torchscript(model, Path(place.name) / "model.pt")
    >>> scores, probabilities = torch.jit.load(str(file))(torch.eye(4)[:1])
    >>> scores.tolist()
    [[10.0, 0.0]]
    """
    module, _, items = export_module(model, part)
    with atomic_file(path) as temporary, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, items)
        torch.jit.save(traced, str(temporary), _extra_files=metadata(model))
        back = torch.jit.load(str(temporary))
        for batch in (items[:1], items, torch.cat([items, items, items[:1]])):
            for got, wanted in zip(back(batch), module(batch), strict=True):
                if not float((got - wanted).abs().max()) <= TOLERANCE:
                    raise StorageError("the exported file differs from the model; not kept")
    return Path(path)
