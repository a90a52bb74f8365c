"""The practitioner's model: learned from base classes, taught new ones by a trained method, kept on disk.

The names load when first used, so that the command line's ``--help`` stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.classifier.base_knowledge import BaseKnowledge
    from wdae.classifier.head import Head
    from wdae.classifier.history import Change, History
    from wdae.classifier.learn_job import LearnConfig
    from wdae.classifier.model import Example, Model
    from wdae.classifier.sources import learn
    from wdae.classifier.store import changing, load, save

_HOMES = {
    "Change": "history",
    "Example": "model",
    "BaseKnowledge": "base_knowledge",
    "Head": "head",
    "History": "history",
    "LearnConfig": "learn_job",
    "Model": "model",
    "changing": "store",
    "learn": "sources",
    "load": "store",
    "save": "store",
}

__all__ = [
    "BaseKnowledge",
    "Change",
    "Example",
    "Head",
    "History",
    "LearnConfig",
    "Model",
    "changing",
    "learn",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"wdae.classifier.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'wdae.classifier' has no attribute {name!r}")
