"""What ships inside the package beside the bank: a backbone for pictures, and a model ready to use.

What they are, and how they were made, stands in the model cards beside them.
"""

from __future__ import annotations

from wdae.classifier import picture_backbone
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import embedded_backbone
from wdae.classifier.store import load
from wdae.errors import ModelError

__all__ = ["READY", "embedded_backbone", "embedded_model"]

READY = "ready"
"""The model that is ready to use, inside the backbone's folder."""


def embedded_model() -> Model:
    """A model ready to use: it knows the 64 classes of :func:`embedded_backbone` and takes pictures.

    Add classes to it, and keep it with :func:`wdae.classifier.save`; ``wdae learn -o model`` does the latter.

    >>> model = embedded_model()
    >>> len(model.names), model.added, model.backbone.name
    (64, (), 'embedded')
    """
    folder = picture_backbone.BACKBONE / READY
    if not folder.is_dir():
        raise ModelError("this copy of wdae has no ready model inside; give wdae learn a folder of pictures")
    return load(folder)
