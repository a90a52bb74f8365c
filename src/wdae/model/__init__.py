"""The practitioner's model: learned from base classes, taught new ones, taken back, kept on disk.

The names load when first used, so that the command line's ``--help`` stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.model.ground import Ground
    from wdae.model.history import Change, History
    from wdae.model.learn_config import LearnConfig
    from wdae.model.learning import learn
    from wdae.model.model import Example, Head, Model
    from wdae.model.store import changing, load, save

_HOMES = {
    "Change": "history",
    "Example": "model",
    "Ground": "ground",
    "Head": "model",
    "History": "history",
    "LearnConfig": "learn_config",
    "Model": "model",
    "changing": "store",
    "learn": "learning",
    "load": "store",
    "save": "store",
}

__all__ = [
    "Change",
    "Example",
    "Ground",
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
        return getattr(importlib.import_module(f"wdae.model.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'wdae.model' has no attribute {name!r}")
