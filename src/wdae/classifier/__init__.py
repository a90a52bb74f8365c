"""The practitioner's model: learned from base classes, taught new ones by a trained method, kept on disk.

The names load when first used, so that the command line's ``--help`` stays free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names

if TYPE_CHECKING:
    from wdae.classifier.base_knowledge import BaseKnowledge
    from wdae.classifier.head import Head
    from wdae.classifier.learn_job import LearnConfig
    from wdae.classifier.model import Model
    from wdae.classifier.sources import learn
    from wdae.classifier.store import changing, load, save

__all__ = [
    "BaseKnowledge",
    "Head",
    "LearnConfig",
    "Model",
    "changing",
    "learn",
    "load",
    "save",
]

__getattr__ = lazy_names(
    "wdae.classifier",
    {
        "wdae.classifier.model": ["Model"],
        "wdae.classifier.base_knowledge": ["BaseKnowledge"],
        "wdae.classifier.head": ["Head"],
        "wdae.classifier.learn_job": ["LearnConfig"],
        "wdae.classifier.store": ["changing", "load", "save"],
        "wdae.classifier.sources": ["learn"],
    },
)
