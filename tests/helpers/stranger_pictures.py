"""Pictures as strangers send them: photos with a place in them, bombs, and plain ones."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def noise(width: int, height: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def jpeg(width: int = 64, height: int = 64, seed: int = 0, **options: Any) -> bytes:
    """A JPEG of soft colours, another one for each seed."""
    coarse = Image.fromarray(noise(8, 8, seed)).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    coarse.save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def gps_photo(*, turned: bool = False) -> bytes:
    """A photo of 400 × 300 whose metadata says where it was taken and by whom."""
    facts = Image.Exif()
    facts[0x0112] = 6 if turned else 1
    facts[0x010E] = "secret place"
    facts.get_ifd(0x8825).update({1: "N", 2: (52.0, 31.0, 12.0), 3: "E", 4: (13.0, 24.0, 36.0)})
    return jpeg(400, 300, exif=facts, comment=b"secret place too")


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its few bytes do not hold."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(64))
    pieces = [
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
        for part in (head, body, b"IEND")
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(pieces)
