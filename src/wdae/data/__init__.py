"""Pictures: readers of the layouts people have on disk, decoding, caching, streaming and augmentation.

The names load when first used: reading pictures needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names

if TYPE_CHECKING:
    from wdae.data.cache import PixelArray, pixels
    from wdae.data.image_set import ImageSet, hold_out
    from wdae.data.layouts import LAYOUTS, open_dataset
    from wdae.data.source import ArraySource, FileSource
    from wdae.data.splits import load_split
    from wdae.data.stream import CentralSquare, RandomSquare

__all__ = [
    "LAYOUTS",
    "ArraySource",
    "CentralSquare",
    "FileSource",
    "ImageSet",
    "PixelArray",
    "RandomSquare",
    "hold_out",
    "load_split",
    "open_dataset",
    "pixels",
]

__getattr__ = lazy_names(
    "wdae.data",
    {
        "wdae.data.cache": ["PixelArray", "pixels"],
        "wdae.data.image_set": ["ImageSet", "hold_out"],
        "wdae.data.layouts": ["LAYOUTS", "open_dataset"],
        "wdae.data.source": ["ArraySource", "FileSource"],
        "wdae.data.splits": ["load_split"],
        "wdae.data.stream": ["CentralSquare", "RandomSquare"],
    },
)
