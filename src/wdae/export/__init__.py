"""A model to run elsewhere, without this library: a plain matrix, ONNX or TorchScript.

The names load when first used: what an exported file says of itself is read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.export.files import export_linear, export_onnx, export_torchscript

__all__ = ["export_linear", "export_onnx", "export_torchscript"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("wdae.export.files"), name)
    raise AttributeError(f"module 'wdae.export' has no attribute {name!r}")
