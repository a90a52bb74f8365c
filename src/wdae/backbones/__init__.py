"""Backbones of the paper's tables, and any other, behind one registry.

The names load when first used: how a backbone wants its pictures is read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names

if TYPE_CHECKING:
    from wdae.backbones.base import Backbone, forward_flops
    from wdae.backbones.registry import build, names, register

__all__ = ["Backbone", "build", "forward_flops", "names", "register"]

__getattr__ = lazy_names(
    "wdae.backbones",
    {
        "wdae.backbones.base": ["Backbone", "forward_flops"],
        "wdae.backbones.registry": ["build", "names", "register"],
    },
)
