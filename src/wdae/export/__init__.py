"""A model to run elsewhere, without this library: a plain matrix, ONNX or TorchScript."""
