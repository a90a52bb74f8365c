"""Methods that recognise novel classes, behind one small interface."""

from wdae.methods.base import Adapter, BaseClasses, Method, Scorer, Support, WeightScorer
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.registry import make, names
from wdae.methods.wdae import WDAE

__all__ = [
    "WDAE",
    "Adapter",
    "BaseClasses",
    "InitialEstimate",
    "Method",
    "Scorer",
    "Support",
    "WeightScorer",
    "make",
    "names",
]
