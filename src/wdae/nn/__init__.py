"""The networks of the method: tensors in, tensors out; no files, no logging."""

from wdae.nn.cosine import CosineClassifier, cosine_scores, unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import ClassGraph, build_graph
from wdae.nn.losses import stage2_losses

__all__ = [
    "ClassGraph",
    "CosineClassifier",
    "Denoiser",
    "build_graph",
    "cosine_scores",
    "stage2_losses",
    "unit",
]
