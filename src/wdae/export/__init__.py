"""A model to run elsewhere, without this library: a plain matrix, ONNX or TorchScript."""

from wdae.export.files import export_linear, export_onnx, export_torchscript

__all__ = ["export_linear", "export_onnx", "export_torchscript"]
