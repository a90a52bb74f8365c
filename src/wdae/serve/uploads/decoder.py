"""The process that decodes strangers' pictures (``python -m wdae.serve.uploads.decoder``), and talk with it.

It has little: no torch, no database, no secrets in its environment, no right to write files, a bound on its
memory. A picture that makes a decoder fail takes this process along and nothing else.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdae.data.decode import Pixels

STORED_SIDE = 2048
"""Pixels of the longer side of a picture as it is kept."""
THUMBNAIL_SIDE = 224
_HEAD = struct.Struct("<II")


def send(pipe: IO[bytes], words: dict[str, Any], data: bytes = b"") -> None:
    """Write one message: a small JSON object and bytes."""
    text = json.dumps(words).encode()
    pipe.write(_HEAD.pack(len(text), len(data)) + text)
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Read one message; a pipe that ends before it does is an EOFError."""
    words, data = _HEAD.unpack(_exactly(pipe, _HEAD.size))
    return json.loads(_exactly(pipe, words)), _exactly(pipe, data)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count) if count else b""
    if len(data) != count:
        raise EOFError
    return data


def main() -> None:
    """Decode what comes on standard input until it ends."""
    from PIL import Image

    from wdae.backbones.preprocessing import Preprocessing
    from wdae.data import decode as decoding
    from wdae.errors import DataError

    Image.init()
    if decoding._HEIC:
        import pillow_heif  # noqa: F401
    pipe, out = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but messages goes through the pipe
    limits, _ = receive(pipe)
    decoding.MAX_PIXELS = limits["pixels"]
    _confine(limits["memory"])
    send(out, {"ready": True})
    while True:
        try:
            asked, data = receive(pipe)
        except EOFError:
            return
        try:
            rule = Preprocessing.of(asked["rule"])
            words, made = _read(data, rule, keep=asked["keep"])
        except MemoryError:
            words, made = {"refused": "decoding it takes more memory than is allowed"}, b""
        except DataError as error:
            words, made = {"refused": str(error)}, b""
        send(out, words, made)


def _confine(memory: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def _read(data: bytes, rule: Any, *, keep: bool) -> tuple[dict[str, Any], bytes]:
    from wdae.data.decode import decode

    pixels = decode(data, rule.at_least)  # as `wdae add` and `wdae predict` read it, to the bit
    prepared = rule(pixels).tobytes()
    if not keep:
        return {"prepared": len(prepared)}, prepared
    whole = decode(data, STORED_SIDE) if data[:2] == b"\xff\xd8" else pixels
    width, height, stored = _jpeg(whole, STORED_SIDE, 92)
    _, _, small = _jpeg(whole, THUMBNAIL_SIDE, 85)
    words = {"prepared": len(prepared), "stored": len(stored), "width": width, "height": height}
    return words, prepared + stored + small


def _jpeg(pixels: Pixels, side: int, quality: int) -> tuple[int, int, bytes]:
    """Width, height and bytes of a JPEG made from pixels alone: what else was in the file is not in it."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=0)
    return *image.size, out.getvalue()


if __name__ == "__main__":
    main()
