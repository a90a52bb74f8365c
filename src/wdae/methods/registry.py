"""Which methods there are, by name; adding one is a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wdae.errors import ModelError, nearest
from wdae.methods.base import Method
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser


def _wdae(kind: str) -> Callable[..., Method]:
    def make_wdae(
        dim: int, hidden: int = 320, n_layers: int = 2, dropout: float = 0.95, **options: Any
    ) -> WDAE:
        return WDAE(Denoiser(dim, hidden, n_layers, dropout, kind), **options)  # type: ignore[arg-type]

    return make_wdae


METHODS: dict[str, Callable[..., Method]] = {
    "initial-estimate": InitialEstimate,
    "wdae-gnn": _wdae("gnn"),
    "wdae-mlp": _wdae("mlp"),
}


def names() -> list[str]:
    """The methods there are.

    >>> names()
    ['initial-estimate', 'wdae-gnn', 'wdae-mlp']
    """
    return sorted(METHODS)


def make(name: str, **options: Any) -> Method:
    """A method by name; learned ones are untrained.

    >>> make("wdae-gnn", dim=8).name
    'wdae-gnn'
    """
    if name not in METHODS:
        raise ModelError(f"no method is called {name!r}{nearest(name, METHODS)}")
    return METHODS[name](**options)
