"""Methods that recognise novel classes, behind one small interface."""

from wdae.methods.base import Adapter, BaseClasses, Method, Scorer, Support, WeightScorer
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import LearnedMethod, Setting, StepLosses, TrainingBatch
from wdae.methods.registry import find, is_learned, make, names, register
from wdae.methods.wdae import WDAE

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
