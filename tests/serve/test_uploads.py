"""Pictures from strangers, decoded by real processes: bad ones are refused, the service goes on."""

from __future__ import annotations

import io
import os
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from stranger_pictures import gps_photo, jpeg, noise, png_claiming

from wdae.backbones.preprocessing import Preprocessing
from wdae.data.decode import decode
from wdae.errors import DataError
from wdae.serve.limits import Limits
from wdae.serve.uploads import DecodedPicture, Decoders, Refused

RULE = Preprocessing(image_size=84)


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoders]:
    made = Decoders(Limits(decoders=1, picture_pixels=4_000_000))
    yield made
    made.close()


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_it_sees_the_pixels_that_the_library_sees(decoder: Decoders) -> None:
    for data in (jpeg(900, 700), encoded(Image.fromarray(noise(300, 200)), "PNG"), gps_photo(turned=True)):
        picture = decoder.read("a.jpg", data, RULE)
        np.testing.assert_array_equal(picture.pixels, RULE(decode(data, RULE.at_least)))
        np.testing.assert_array_equal(picture.pixels, decoder.read("a.jpg", data, RULE, keep=False).pixels)


def test_nothing_but_pixels_is_kept(decoder: Decoders) -> None:
    photo = gps_photo(turned=True)
    assert b"Exif" in photo and b"secret place" in photo
    stored = decoder.read("a.jpg", photo, RULE).stored
    with Image.open(io.BytesIO(stored)) as image:
        assert not image.getexif() and not {"exif", "icc_profile", "comment", "xmp"} & set(image.info)
        assert image.size == (300, 400)  # upright: the file says that it lies on its side
    assert b"Exif" not in stored and b"secret place" not in stored


def test_texts_of_a_png_are_not_kept(decoder: Decoders) -> None:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Author", "secret person")
    stored = decoder.read("a.jpg", encoded(Image.fromarray(noise(50, 50)), "PNG", pnginfo=texts), RULE).stored
    assert b"secret person" not in stored


def test_large_pictures_are_kept_smaller(decoder: Decoders) -> None:
    picture = decoder.read("a.jpg", jpeg(2600, 1300), RULE)
    assert (picture.width, picture.height) == (2048, 1024)


POLYGLOT = jpeg(64, 64) + b"PK\x03\x04<script>alert(1)</script>"


def test_a_picture_that_is_also_something_else_is_kept_as_a_picture_only(decoder: Decoders) -> None:
    assert b"script" not in decoder.read("a.jpg", POLYGLOT, RULE).stored
    gif = b"GIF89a/*" + encoded(Image.new("P", (9, 9)), "GIF")[8:] + b"*/=1;alert(1)"
    with suppress(DataError):  # it may be refused as well
        assert b"alert" not in decoder.read("a.jpg", gif, RULE).stored


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>", "SVG"),
        (b"<!doctype html><script>", "HTML"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not a picture"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PK\x03\x04" + bytes(90), "zip"),
        (jpeg(64, 64)[:300], "cannot be decoded"),
        (png_claiming(60_000, 60_000), "3,600,000,000|60000 × 60000"),
        (png_claiming(2_100, 2_000), "at most 4,000,000"),
        (b"\x00" * 40 * 2**20, "at most 33.6 MB"),
        (encoded(Image.new("F", (9, 9)), "TIFF"), "floating-point"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(decoder: Decoders, data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decoder.read("a.jpg", data, RULE)


def png_bomb(side: int) -> bytes:
    """A true picture of few bytes and many pixels: seconds of work, and much memory."""
    out = io.BytesIO()
    rows = zlib.compress(b"\0" * (side * 4 + 1) * side, 9)
    out.write(b"\x89PNG\r\n\x1a\n")
    for kind, body in (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    ):
        out.write(
            struct.pack(">I", len(body))
            + kind
            + body
            + struct.pack(">I", zlib.crc32(kind + body) & 0xFFFFFFFF)
        )
    return out.getvalue()


def test_memory_of_a_decoder_is_bounded() -> None:
    small = Decoders(Limits(decoders=1, picture_pixels=60_000_000, decoder_bytes=400 * 2**20))
    try:
        with pytest.raises(DataError, match=r"memory|died"):
            small.read("a.jpg", png_bomb(6000), RULE)
        assert small.read("a.jpg", jpeg(64, 64), RULE).width == 64
    finally:
        small.close()


def test_a_picture_that_kills_its_decoder_is_refused_and_the_next_is_read() -> None:
    decoder = Decoders(Limits(decoders=1))
    try:
        decoder.read("a.jpg", jpeg(64, 64), RULE)
        slow, outcome = png_bomb(5000), []

        def read() -> None:
            try:
                outcome.append(decoder.read("a.jpg", slow, RULE))
            except DataError as error:
                outcome.append(error)

        process = decoder._idle.queue[-1]
        assert process is not None
        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.15)
        os.kill(process.process.pid, signal.SIGSEGV)
        thread.join()
        assert isinstance(outcome[0], DataError) and "died (signal 11)" in str(outcome[0])
        assert isinstance(decoder.read("a.jpg", jpeg(64, 64), RULE), DecodedPicture)
    finally:
        decoder.close()


def test_a_picture_that_takes_too_long_is_refused() -> None:
    decoder = Decoders(Limits(decoders=1, decoder_seconds=0.1))
    try:
        decoder.start()
        with pytest.raises(DataError, match=r"longer than 0\.1 s"):
            decoder.read("a.jpg", png_bomb(5000), RULE)
    finally:
        decoder.close()


def test_a_decoder_that_died_while_idle_is_replaced(decoder: Decoders) -> None:
    decoder.read("a.jpg", jpeg(64, 64), RULE)
    process = decoder._idle.queue[-1]
    assert process is not None
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.wait()
    assert decoder.read("a.jpg", jpeg(64, 64), RULE).width == 64


def test_bad_ones_do_not_hold_up_the_good(decoder: Decoders) -> None:
    found = decoder.read_all([("a", jpeg(64, 64)), ("b", b"no"), ("c", jpeg(70, 64))], RULE)
    assert [type(one) for one in found] == [DecodedPicture, Refused, DecodedPicture]
    assert isinstance(found[1], Refused) and found[1].name == "b" and "not a picture" in found[1].reason


def test_the_process_has_no_secrets_and_no_torch(decoder: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    fresh = Decoders(Limits(decoders=1))
    try:
        fresh.read("a.jpg", jpeg(64, 64), RULE)
        process = fresh._idle.queue[-1]
        assert process is not None
        facts = Path("/proc", str(process.process.pid))
        assert b"very secret" not in (facts / "environ").read_bytes()
        assert "libtorch" not in (facts / "maps").read_text()
        lines = (facts / "limits").read_text().splitlines()
        limits = {line[:25].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max file size"] == "0" and int(limits["Max address space"]) == 3 * 2**29
    finally:
        fresh.close()
