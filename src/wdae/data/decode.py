"""One encoded picture in, RGB pixels out, whatever its format; and the one resampling everything shares."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError, features

from wdae.errors import DataError

Pixels = npt.NDArray[np.uint8]

_AVIF = bool(features.check("avif"))
_HEIC = find_spec("pillow_heif") is not None
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(["AVIF"] * _AVIF), *(["HEIF"] * _HEIC))
"""All that Pillow is let near: among the rest are formats that run other programs, such as PostScript."""
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
    | ({".avif"} if _AVIF else set())
    | ({".heic", ".heif", ".hif"} if _HEIC else set())
)
HEIC_HINT = "; HEIC is with: pip install 'wdae[heic]'"

MAX_PIXELS = 2**26
"""Larger pictures are refused from their header; JPEGs, decoded at a fraction, at twice that."""
MAX_BYTES = 2**28
MAX_SCANS = 100
"""Passes over the pixels of a progressive JPEG; programs write about ten."""
_MAX_SCANNED = 2**31  # pixels times passes: some ten seconds of decoding

# A PNG's compressed texts and colour profile are unpacked when it is opened.
PngImagePlugin.MAX_TEXT_CHUNK = 2**20
PngImagePlugin.MAX_TEXT_MEMORY = 2**24

_ORIENTATION = 0x0112
_REACH = 3  # pixels that a filter may look at, at most; of the result


def decode(data: bytes, at_least: int | None = None) -> Pixels:
    """Decode one picture to RGB, upright.

    Grey, palette, 16-bit and CMYK pictures become 8-bit RGB; transparent ones are laid on white; the camera's
    EXIF orientation is applied; of an animation the first frame is taken.

    Args:
        data: the bytes of the file.
        at_least: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size as long as both sides keep this many
            pixels; much faster for photographs that are scaled down anyway.

    Shapes:
        uint8 [height, width, 3].

    Raises:
        DataError: the reason only; the caller knows the picture's name.
    """
    if not data:
        raise DataError("the file is empty")
    if len(data) > MAX_BYTES:
        raise DataError(f"the file has {len(data)} bytes; at most {MAX_BYTES} are accepted")
    try:
        if data[:3] == b"\xff\xd8\xff" and (pixels := _plain_jpeg(data, at_least or 0)) is not None:
            return pixels
        return _with_pillow(data, at_least)
    except (DataError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        has = re.search(r"\d+", str(error))  # Pillow's own limit is far above ours; its size is what counts
        many = f"{int(has[0]):,}" if has else "too many"
        raise DataError(f"has {many} pixels; at most {MAX_PIXELS:,} pixels are accepted") from error
    except UnidentifiedImageError as error:
        advice = HEIC_HINT if _is_heic(data) else ""
        raise DataError(f"not a picture that is read ({', '.join(FORMATS)}){advice}") from error
    except Exception as error:  # decoders raise anything at all on malformed input
        raise DataError(f"cannot be decoded: {str(error)[:200]}") from error


def fit(pixels: Pixels, size: int) -> Pixels:
    """The central square of a picture, resampled to ``size`` × ``size`` (bilinear, antialiased).

    Shapes:
        uint8 [height, width, 3] → uint8 [size, size, 3].
    """
    height, width = pixels.shape[:2]
    if height == width == size:
        return pixels
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    return resample(pixels, (left, top, left + side, top + side), size)


def resample(
    pixels: Pixels,
    box: tuple[float, float, float, float],
    size: int,
    interpolation: str = "bilinear",
) -> Pixels:
    """The box (left, top, right, bottom) of a picture at ``size`` × ``size``, antialiased.

    Rows are resampled first, then columns: which of the two goes first decides the last bit, and Pillow's own
    choice depends on its version and on the picture.
    """
    how, (left, top, right, bottom) = Image.Resampling[interpolation.upper()], box
    if interpolation == "nearest":
        return np.asarray(Image.fromarray(pixels).resize((size, size), how, box=box))
    margin = _REACH * max(1.0, (bottom - top) / size) + 1  # rows beyond the box that its edges are made of
    first, last = max(0, int(top - margin)), min(len(pixels), math.ceil(bottom + margin))
    image = Image.fromarray(pixels[first:last])
    image = image.resize((size, last - first), how, box=(left, 0, right, last - first))
    return np.asarray(image.resize((size, size), how, box=(0, top - first, size, bottom - first)))


def _plain_jpeg(data: bytes, at_least: int) -> Pixels | None:
    """The fast path, for what nearly every file is; None where Pillow has to judge."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    _check_size(width, height, data)
    if colours not in ("YCbCr", "Gray", "RGB") or _is_turned(data):
        return None
    try:
        # Whatever the library warns of is an error here; Pillow then tells an oddity from a torn file.
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=at_least, min_width=at_least)
    except ValueError:
        return None
    return pixels


def _is_turned(data: bytes) -> bool:
    """Whether EXIF asks for a turn or a mirror; most files have no EXIF at all, which is quick to see."""
    if data.find(b"Exif\0\0", 0, 1 << 17) < 0:
        return False
    with _quiet(), Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return bool(image.getexif().get(_ORIENTATION, 1) != 1)


def _is_heic(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1")


def _with_pillow(data: bytes, at_least: int | None) -> Pixels:
    kinds = tuple(kind for kind in FORMATS if kind != "HEIF")
    if _HEIC and _is_heic(data):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
        kinds = ("HEIF",)
    with _quiet(), Image.open(io.BytesIO(data), formats=kinds) as image:
        _check_size(*image.size, data)  # opening reads the header only; of several frames one is decoded
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        return _to_rgb(ImageOps.exif_transpose(image))


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns of odd metadata, and of sizes well below our limit; neither is worth a line a picture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _to_rgb(image: Image.Image) -> Pixels:
    if image.mode == "I" or image.mode.startswith("I;16"):  # Pillow would clip these to 8 bits, not scale
        wide: npt.NDArray[Any] = np.asarray(image)
        grey = np.empty(wide.shape, np.uint8)
        for row, line in enumerate(wide):
            grey[row] = (np.clip(line.astype(np.int64), 0, 65535) + 128) // 257
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise DataError(
            "has floating-point pixels, whose range is anybody's guess; save it as an 8-bit picture"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def _check_size(width: int, height: int, data: bytes) -> None:
    is_jpeg = data[:2] == b"\xff\xd8"
    most = 2 * MAX_PIXELS if is_jpeg else MAX_PIXELS
    if width < 1 or height < 1 or width * height > most:
        raise DataError(f"is {width} × {height} pixels; at most {most:,} pixels are accepted")
    scans = data.count(b"\xff\xda") if is_jpeg else 1
    if scans > MAX_SCANS or scans * width * height > _MAX_SCANNED:
        raise DataError(f"has {scans} passes over {width} × {height} pixels; that would take too long")
