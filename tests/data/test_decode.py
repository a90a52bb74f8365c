"""Every kind of picture comes out as the right RGB pixels, upright, at the right size."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import simplejpeg
from PIL import Image, features

from wdae.data.decode import SUFFIXES, decode, fit


def close(a: np.ndarray, b: np.ndarray, levels: float) -> bool:
    return a.shape == b.shape and float(np.abs(a.astype(int) - b.astype(int)).mean()) <= levels


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_colour_jpeg_is_what_pillow_sees(draw, encode, subsampling, progressive):
    data = encode(draw(1, 37, 50), "JPEG", subsampling=subsampling, progressive=progressive, quality=90)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_jpeg_stored_as_rgb(draw, encode):
    data = encode(draw(1), "JPEG", keep_rgb=True, quality=95)
    assert simplejpeg.decode_jpeg_header(data)[2] == "RGB"
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))
    assert close(decode(data), draw(1), 3)


def test_grey_jpeg_has_three_equal_channels(draw, encode):
    grey = Image.fromarray(draw(2)).convert("L")
    out = decode(encode(grey, "JPEG", quality=98))
    assert (out == out[..., :1]).all()
    assert close(out[..., 0], np.asarray(grey), 2)


def test_cmyk_jpeg_has_its_colours(draw, encode):
    """Pillow writes CMYK inverted, as Adobe does; a reader unaware of that returns a negative."""
    picture = draw(3)
    out = decode(encode(Image.fromarray(picture).convert("CMYK"), "JPEG", quality=98))
    assert close(out, picture, 6)
    assert not close(out, 255 - picture, 30)


def test_cmyk_goes_past_the_fast_decoder(draw, encode):
    data = encode(Image.fromarray(draw(3)).convert("CMYK"), "JPEG", quality=98)
    assert simplejpeg.decode_jpeg_header(data)[2] == "CMYK"


def test_palette(draw, encode):
    image = Image.fromarray(draw(4)).quantize(32)
    assert np.array_equal(decode(encode(image)), np.asarray(image.convert("RGB")))


def test_palette_with_transparency_lies_on_white(draw, encode):
    image = Image.fromarray(draw(5)).quantize(8)
    see_through = int(np.asarray(image)[0, 0])
    out = decode(encode(image, transparency=see_through))
    expected = np.asarray(image.convert("RGB")).copy()
    expected[np.asarray(image) == see_through] = 255
    assert np.array_equal(out, expected)


def test_partly_transparent_rgba_is_mixed_with_white(draw, encode):
    picture = draw(6)
    alpha = np.full((*picture.shape[:2], 1), 64, np.uint8)
    out = decode(encode(np.concatenate([picture, alpha], 2)))
    assert np.abs(out - (picture * (64 / 255) + 255 * (1 - 64 / 255))).max() <= 1


def test_grey_with_alpha(encode):
    image = Image.fromarray(np.array([[[100, 255], [100, 0]]], np.uint8), "LA")
    assert decode(encode(image)).tolist() == [[[100] * 3, [255] * 3]]


def test_sixteen_bits_are_scaled_not_clipped(encode):
    wide = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    for form in ("PNG", "TIFF"):
        out = decode(encode(Image.fromarray(wide), form))
        assert out.shape == (32, 32, 3)
        assert np.array_equal(out[..., 0], np.round(wide / 257).astype(np.uint8))


def test_bilevel(encode):
    image = Image.fromarray(np.eye(8, dtype=np.uint8) * 255).convert("1")
    assert np.array_equal(decode(encode(image))[..., 0], np.eye(8) * 255)


@pytest.mark.parametrize("form", ["BMP", "GIF", "WEBP", "TIFF"])
def test_other_formats(draw, encode, form):
    options = {"lossless": True} if form == "WEBP" else {}
    picture = draw(7)
    assert close(decode(encode(picture, form, **options)), picture, 6 if form == "GIF" else 0)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif(draw, encode):
    picture = draw(7, 40, 64)
    assert close(decode(encode(picture, "AVIF", quality=100, subsampling="4:4:4")), picture, 4)
    assert ".avif" in SUFFIXES


def test_heic_with_its_extra(draw):
    heif = pytest.importorskip("pillow_heif", reason="needs the extra heic")
    picture, out = draw(7, 64, 96), io.BytesIO()
    heif.from_pillow(Image.fromarray(picture)).save(out, quality=-1, chroma=444)
    assert close(decode(out.getvalue()), picture, 4)
    assert ".heic" in SUFFIXES


def test_heic_without_it_is_named():
    """In an interpreter of its own, where the library cannot be found."""
    data = b"\0\0\0\x18ftypheic" + bytes(12)
    code = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pillow_heif' else find(name, *rest)\n"
        "from wdae.data.decode import SUFFIXES, decode\n"
        "from wdae.data.findings import left_out\n"
        f"try: decode({data!r})\n"
        "except Exception as error: print(error)\n"
        "print(left_out(['a/IMG_1.HEIC']), '.heic' in SUFFIXES)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("HEIC is with: pip install 'wdae[heic]'") == 2
    assert "a/IMG_1.HEIC" in done.stdout and done.stdout.rstrip().endswith("False")


TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation(draw, encode, orientation, form):
    stored = draw(8, 20, 32)
    exif = Image.Exif()
    exif[0x0112] = orientation
    quality = {"quality": 98, "subsampling": 0} if form == "JPEG" else {}
    quality = {"lossless": True} if form == "WEBP" else quality
    out = decode(encode(stored, form, exif=exif, **quality))
    assert close(out, TURNS[orientation](stored), 2)


def test_exif_without_a_turn_stays_on_the_fast_path(draw, encode):
    exif = Image.Exif()
    exif[0x010F] = "Camera"
    plain, tagged = (encode(draw(9), "JPEG", **options) for options in ({}, {"exif": exif}))
    assert np.array_equal(decode(plain), decode(tagged))


def test_a_png_named_jpeg_is_read_by_its_content(draw, encode):
    """One of ImageNet's .JPEG files is a PNG."""
    assert np.array_equal(decode(encode(draw(1))), draw(1))


def test_large_jpegs_are_decoded_smaller_but_never_too_small(draw, encode):
    data = encode(draw(1, 400, 600), "JPEG")
    assert decode(data).shape == (400, 600, 3)
    assert decode(data, at_least=160).shape == (200, 300, 3)
    assert decode(data, at_least=1000).shape == (400, 600, 3)
    full, reduced = fit(decode(data), 80), fit(decode(data, at_least=160), 80)
    assert close(full, reduced, 1.0)


def test_turned_jpegs_are_decoded_smaller_too(draw, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(draw(1, 400, 600), "JPEG", exif=exif)
    assert decode(data, at_least=160).shape == (300, 200, 3)


def test_fit_is_an_antialiased_resampling_of_the_central_square():
    """Oracle: the triangle filter written out, one pixel at a time."""
    picture = np.random.default_rng(0).integers(0, 256, (30, 21, 3), dtype=np.uint8)
    size, side, top = 8, 21, (30 - 21) / 2
    out = np.zeros((size, size, 3))
    scale = side / size
    for y in range(size):
        for x in range(size):
            total = 0.0
            for i in range(30):
                for j in range(21):
                    weight = max(0, 1 - abs(i + 0.5 - (top + (y + 0.5) * scale)) / scale)
                    weight *= max(0, 1 - abs(j + 0.5 - (x + 0.5) * scale) / scale)
                    out[y, x] += weight * picture[i, j]
                    total += weight
            out[y, x] /= total
    inner = slice(1, -1)  # at the edge the filter may or may not look past the square
    assert np.abs(fit(picture, size)[inner] - out[inner]).max() <= 1.5


def test_fit_does_not_depend_on_how_the_picture_was_stored(draw, encode):
    """JPEG by the fast decoder, and the same pixels as PNG by Pillow, give the same bytes."""
    jpeg = encode(draw(3, 84, 84), "JPEG", quality=90)
    png = encode(decode(jpeg))
    assert np.array_equal(fit(decode(jpeg), 80), fit(decode(png), 80))


def test_fit_leaves_the_right_size_alone(draw):
    picture = draw(0, 16, 16)
    assert fit(picture, 16) is picture
