"""Pictures: readers of the layouts people have on disk, decoding, caching, streaming and augmentation."""

from wdae.config.augment import AugmentConfig
from wdae.data.cache import PixelArray, pixels
from wdae.data.image_set import ImageSet, hold_out
from wdae.data.layouts import LAYOUTS, open_dataset
from wdae.data.source import ArraySource, EncodedSource, FileSource, ImageSource
from wdae.data.splits import ClassSplit, load_split
from wdae.data.stream import Batch, CentralSquare, RandomSquare, stream

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
    "stream",
]
