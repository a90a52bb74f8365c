"""Backbones of the paper's tables, and any other, behind one registry.

The names load when first used: how a backbone wants its pictures is read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.backbones.base import Backbone, forward_flops
    from wdae.backbones.registry import build, names, register

_HOMES = {
    "Backbone": "wdae.backbones.base",
    "forward_flops": "wdae.backbones.base",
    "build": "wdae.backbones.registry",
    "names": "wdae.backbones.registry",
    "register": "wdae.backbones.registry",
}

__all__ = ["Backbone", "build", "forward_flops", "names", "register"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wdae.backbones' has no attribute {name!r}")
