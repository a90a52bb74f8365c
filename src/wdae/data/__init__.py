"""Pictures: readers of the layouts people have on disk, decoding, caching, streaming and augmentation.

The names load when first used: reading pictures needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.config.augment import AugmentConfig
    from wdae.data.cache import PixelArray, pixels
    from wdae.data.image_set import ImageSet, hold_out
    from wdae.data.layouts import LAYOUTS, open_dataset
    from wdae.data.source import ArraySource, EncodedSource, FileSource, ImageSource
    from wdae.data.splits import ClassSplit, load_split
    from wdae.data.stream import Batch, CentralSquare, RandomSquare

_HOMES = {
    "AugmentConfig": "wdae.config.augment",
    "PixelArray": "wdae.data.cache",
    "pixels": "wdae.data.cache",
    "ImageSet": "wdae.data.image_set",
    "hold_out": "wdae.data.image_set",
    "LAYOUTS": "wdae.data.layouts",
    "open_dataset": "wdae.data.layouts",
    "ArraySource": "wdae.data.source",
    "EncodedSource": "wdae.data.source",
    "FileSource": "wdae.data.source",
    "ImageSource": "wdae.data.source",
    "ClassSplit": "wdae.data.splits",
    "load_split": "wdae.data.splits",
    "Batch": "wdae.data.stream",
    "CentralSquare": "wdae.data.stream",
    "RandomSquare": "wdae.data.stream",
}

__all__ = [
    "LAYOUTS",
    "ArraySource",
    "AugmentConfig",
    "Batch",
    "CentralSquare",
    "ClassSplit",
    "EncodedSource",
    "FileSource",
    "ImageSet",
    "ImageSource",
    "PixelArray",
    "RandomSquare",
    "hold_out",
    "load_split",
    "open_dataset",
    "pixels",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wdae.data' has no attribute {name!r}")
