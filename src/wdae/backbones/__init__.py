"""Backbones of the paper's tables, and any other, behind one registry."""

from wdae.backbones import conv4, efficientnet_lite, resnet, wide_resnet
from wdae.backbones.base import Backbone, forward_flops
from wdae.backbones.registry import build, names, register

__all__ = [
    "Backbone",
    "build",
    "conv4",
    "efficientnet_lite",
    "forward_flops",
    "names",
    "register",
    "resnet",
    "wide_resnet",
]
