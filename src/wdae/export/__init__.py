"""A model to run elsewhere, without this library: a plain matrix, ONNX or TorchScript.

The names load when first used: what an exported file says of itself is read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names

if TYPE_CHECKING:
    from wdae.export.files import export_linear, export_onnx, export_torchscript

__all__ = ["export_linear", "export_onnx", "export_torchscript"]

__getattr__ = lazy_names("wdae.export", {"wdae.export.files": __all__})
