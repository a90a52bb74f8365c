"""Methods that recognise novel classes, behind one small interface.

The names load when first used: what a method's file says is read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.methods.base import Adapter, BaseClasses, Method, Scorer, Support, WeightScorer
    from wdae.methods.initial_estimate import InitialEstimate
    from wdae.methods.learned import LearnedMethod, Setting, StepLosses, TrainingBatch
    from wdae.methods.registry import find, is_learned, make, names, register
    from wdae.methods.wdae import WDAE

_HOMES = {
    "Adapter": "wdae.methods.base",
    "BaseClasses": "wdae.methods.base",
    "Method": "wdae.methods.base",
    "Scorer": "wdae.methods.base",
    "Support": "wdae.methods.base",
    "WeightScorer": "wdae.methods.base",
    "InitialEstimate": "wdae.methods.initial_estimate",
    "LearnedMethod": "wdae.methods.learned",
    "Setting": "wdae.methods.learned",
    "StepLosses": "wdae.methods.learned",
    "TrainingBatch": "wdae.methods.learned",
    "find": "wdae.methods.registry",
    "is_learned": "wdae.methods.registry",
    "make": "wdae.methods.registry",
    "names": "wdae.methods.registry",
    "register": "wdae.methods.registry",
    "WDAE": "wdae.methods.wdae",
}

__all__ = [
    "WDAE",
    "Adapter",
    "BaseClasses",
    "InitialEstimate",
    "LearnedMethod",
    "Method",
    "Scorer",
    "Setting",
    "StepLosses",
    "Support",
    "TrainingBatch",
    "WeightScorer",
    "find",
    "is_learned",
    "make",
    "names",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wdae.methods' has no attribute {name!r}")
