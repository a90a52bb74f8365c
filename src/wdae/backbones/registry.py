"""Backbones by name: our own, ``pkg.module:factory``, ``timm:NAME`` and ``transformers:NAME``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from wdae.backbones.base import Backbone
from wdae.backbones.external import build_external
from wdae.errors import RecipeError, nearest

Factory = TypeVar("Factory", bound=Callable[..., Backbone])

_FACTORIES: dict[str, Callable[..., Backbone]] = {}
_OURS = ("conv4", "efficientnet_lite", "resnet", "second_order", "wide_resnet")


def register(name: str) -> Callable[[Factory], Factory]:
    """Register a factory under a name; its keyword arguments become the backbone's options.

    >>> from torch import nn
    >>> @register("mine")
    ... def mine(width: int = 16) -> Backbone:
    ...     return Backbone([nn.Conv2d(3, width, 3)], feature_dim=width, image_size=32)
    >>> build("mine", width=8).feature_dim, _FACTORIES.pop("mine").__name__
    (8, 'mine')
    """

    def keep(factory: Factory) -> Factory:
        if name in _FACTORIES:
            raise ValueError(f"a backbone named {name!r} is registered already")
        _FACTORIES[name] = factory
        return factory

    return keep


def names() -> list[str]:
    """The registered names, in alphabetical order.

    >>> "resnet12" in names()
    True
    """
    return sorted(_known())


def _known() -> dict[str, Callable[..., Backbone]]:
    for module in _OURS:  # each registers its own
        importlib.import_module(f"wdae.backbones.{module}")
    return _FACTORIES


def build(name: str, **options: Any) -> Backbone:
    """A freshly initialised backbone.

    Args:
        name: a registered name; ``pkg.module:factory`` for a function of yours that returns a module;
            ``timm:NAME`` or ``transformers:NAME`` for a model of those libraries.
        options: keyword arguments of the factory.

    >>> build("conv4-64", image_size=32).feature_dim
    256
    """
    if name in _known():
        factory = _FACTORIES[name]
        known = inspect.signature(factory).parameters
        for option in options:
            if option not in known:
                raise RecipeError(f"backbone {name!r} has no option {option!r}{nearest(option, known)}")
        return factory(**options)
    if ":" in name:
        return build_external(name, options)
    raise RecipeError(
        f"unknown backbone {name!r}{nearest(name, names())} "
        "(or give pkg.module:factory, timm:NAME, transformers:NAME)"
    )
