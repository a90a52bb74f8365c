"""Methods that recognise novel classes, behind one small interface.

The names load when first used: what a method's file says is read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names

if TYPE_CHECKING:
    from wdae.methods.base import BaseClasses, Method, Scorer, Support, WeightScorer
    from wdae.methods.initial_estimate import InitialEstimate
    from wdae.methods.learned import LearnedMethod, Setting, StepLosses, TrainingBatch
    from wdae.methods.registry import find, is_learned, make, names, register
    from wdae.methods.wdae import WDAE

__all__ = [
    "WDAE",
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

__getattr__ = lazy_names(
    "wdae.methods",
    {
        "wdae.methods.base": ["BaseClasses", "Method", "Scorer", "Support", "WeightScorer"],
        "wdae.methods.initial_estimate": ["InitialEstimate"],
        "wdae.methods.learned": ["LearnedMethod", "Setting", "StepLosses", "TrainingBatch"],
        "wdae.methods.registry": ["find", "is_learned", "make", "names", "register"],
        "wdae.methods.wdae": ["WDAE"],
    },
)
