"""The methods by name; adding one is a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

import torch

from wdae.errors import ModelError, did_you_mean, nearest
from wdae.methods.base import Method
from wdae.methods.baselines.activations import Activations
from wdae.methods.baselines.feat import Feat
from wdae.methods.baselines.gnn import ExampleGraph, GraphNetwork
from wdae.methods.baselines.leo import Leo
from wdae.methods.baselines.lwof import LwofAttention, LwofAverage
from wdae.methods.baselines.maml import FirstOrderProtoMaml, Maml, ProtoMaml
from wdae.methods.baselines.matching import Matching
from wdae.methods.baselines.prototype_matching import PrototypeMatchingH
from wdae.methods.baselines.prototypical import Prototypical
from wdae.methods.baselines.r2d2 import R2D2, RidgeCosine
from wdae.methods.baselines.relation import Relation, RelationCosine
from wdae.methods.baselines.shifted_neurons import ShiftedNeurons
from wdae.methods.baselines.snail import Snail
from wdae.methods.baselines.tadam import Tadam
from wdae.methods.baselines.tpn import Propagation
from wdae.methods.fitted.centred_mean import CentredMean
from wdae.methods.fitted.distribution_calibration import DistributionCalibration
from wdae.methods.fitted.fine_tune import FineTune
from wdae.methods.fitted.lda import LinearDiscriminant
from wdae.methods.fitted.logistic import LogisticRegression, LogisticRegressionH
from wdae.methods.fitted.meta_qda import MetaQda
from wdae.methods.fitted.sgm import BatchSgm, Sgm, SgmH
from wdae.methods.fitted.simpleshot import SimpleShot
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import LearnedMethod, Setting
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser, Kind
from wdae.printing import warn

_CLASSES: tuple[type[Method], ...] = (
    InitialEstimate,
    SimpleShot,
    CentredMean,
    LinearDiscriminant,
    FineTune,
    LogisticRegression,
    LogisticRegressionH,
    Sgm,
    SgmH,
    BatchSgm,
    DistributionCalibration,
    MetaQda,
    Prototypical,
    Matching,
    PrototypeMatchingH,
    Feat,
    Tadam,
    Relation,
    RelationCosine,
    R2D2,
    RidgeCosine,
    GraphNetwork,
    ExampleGraph,
    Propagation,
    Snail,
    ShiftedNeurons,
    Maml,
    ProtoMaml,
    FirstOrderProtoMaml,
    Leo,
    Activations,
    LwofAverage,
    LwofAttention,
)
METHODS: dict[str, type[Method]] = {
    **{kind.name: kind for kind in _CLASSES},
    "wdae-mlp": WDAE,
    "wdae-gnn": WDAE,
}
FORMER = {
    "gnn": "example-graph",
    "maml": "proto-maml",
    "maml-first-order": "proto-maml-first-order",
    "r2d2": "ridge-cosine",
    "relation": "relation-cosine",
}
"""What methods were called before, in files of theirs; some of these names are now the published systems'."""
_SETTING = ("dim", "n_base", "scale", "generator")  # what a learned method gets from the bank, not a user


GROUP = "wdae.methods"
"""Entry points by which installed packages offer methods: ``lda = "their_package.lda:TheirMethod"``."""


@cache
def _take_installed() -> None:
    """Register the methods of installed packages; a broken one is named and left out."""
    for entry in entry_points(group=GROUP):
        try:
            kind = entry.load()
            if not (isinstance(kind, type) and issubclass(kind, Method)):
                raise ModelError(f"it is no subclass of wdae.methods.Method but {kind!r}")
            if METHODS.setdefault(kind.name, kind) is not kind:
                raise ModelError(f"there is a method {kind.name!r} already")
        except Exception as error:  # somebody else's code: whatever it raises, ours goes on
            warn(f"method {entry.name!r} of an installed package is left out: {error}")


def names() -> list[str]:
    """The methods there are, from the plainest to the paper's own, then those of installed packages.

    >>> names()[0], names()[-1]
    ('initial-estimate', 'wdae-gnn')
    """
    _take_installed()
    return list(METHODS)


def find(name: str) -> type[Method]:
    """The class of a method.

    >>> find("prototypical").__name__
    'Prototypical'
    """
    if name not in METHODS:
        _take_installed()
    if name not in METHODS and name in FORMER:
        raise ModelError(f"no method is called {name}; what was called so before is {FORMER[name]}")
    if name not in METHODS:
        hint = nearest(name, METHODS)
        known = "" if "known:" in hint else f" (there are: {', '.join(METHODS)})"
        raise ModelError(f"no method is called {name!r}{hint}{known}")
    return METHODS[name]


def is_learned(name: str) -> bool:
    """Whether a method has to be trained, or fitted to the base classes, before it can be used.

    >>> is_learned("initial-estimate"), is_learned("wdae-gnn")
    (False, True)
    """
    return issubclass(find(name), LearnedMethod | WDAE)


def register(kind: type[Method]) -> type[Method]:
    """Add a method of one's own, under its ``name``; a decorator for classes outside this package.

    >>> @register
    ... class Mine(InitialEstimate):
    ...     name = "mine"
    >>> METHODS.pop("mine").__name__
    'Mine'
    """
    if kind.name in METHODS:
        raise ModelError(f"there is a method {kind.name!r} already; choose another name")
    METHODS[kind.name] = kind
    return kind


def make(name: str, **options: Any) -> Method:
    """A method by name; learned ones are untrained and need the keys of a :class:`Setting` as well.

    >>> make("wdae-gnn", dim=8).name
    'wdae-gnn'
    """
    kind = find(name)
    try:
        if kind is WDAE:
            return _wdae("gnn" if name == "wdae-gnn" else "mlp", **options)
        if not issubclass(kind, LearnedMethod):
            return kind(**options)
        own = {key: value for key, value in options.items() if key not in _SETTING}
        method = kind(Setting(**{key: options[key] for key in _SETTING if key in options}), **own)
    except TypeError as error:
        takes = _options_of(kind)
        odd = [key for key in options if takes is not None and key not in (*takes, *_SETTING)]
        if takes is not None and odd:
            has = f"its options: {', '.join(takes)}" if takes else "it has none"
            raise ModelError(
                f"{name} has no option {odd[0]!r}{did_you_mean(odd[0], takes)} ({has})"
            ) from error
        given = ", ".join(options) or "no options"
        raise ModelError(f"{name} cannot be made with {given}: {error}") from error
    method.options = own
    return method


def _options_of(kind: type[Method]) -> list[str] | None:
    """The options that a method is made with; None where it takes any."""
    makers: list[Callable[..., Any]] = [_wdae, WDAE] if kind is WDAE else [kind]
    found = [one for maker in makers for one in signature(maker).parameters.values()]
    if kind is not WDAE and any(one.kind is one.VAR_KEYWORD for one in found):
        return None
    made = ("self", "setting", "denoiser", "kind", *_SETTING)
    return [one.name for one in found if one.kind is not one.VAR_KEYWORD and one.name not in made]


def _wdae(
    kind: Kind,
    dim: int,
    hidden: int = 320,
    n_layers: int = 2,
    dropout: float = 0.95,
    generator: torch.Generator | None = None,
    **options: Any,
) -> WDAE:
    return WDAE(Denoiser(dim, hidden, n_layers, dropout, kind, generator), **options)
