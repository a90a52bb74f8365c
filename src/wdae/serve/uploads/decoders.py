"""Pictures from strangers: decoded in processes that may die, refused one by one with the reason."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdae.classifier.names import shorten
from wdae.data.decode import HEIC_HINT
from wdae.errors import DataError
from wdae.printing import printable, size_text
from wdae.runtime.process import available_cores
from wdae.serve.limits import Limits
from wdae.serve.uploads.decoder import receive, send

if TYPE_CHECKING:
    from wdae.backbones.preprocessing import Preprocessing
    from wdae.data.decode import Pixels

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "LD_LIBRARY_PATH")  # no secrets


def shown_name(file: str | None) -> str:
    """A file's name as answers have it: printable, and cut where it is long."""
    return shorten(file or "picture", 120)


class Refused(DataError):  # noqa: N818
    """A picture that is not taken, by its name, and why."""

    def __init__(self, name: str, reason: str) -> None:
        reason = reason.replace(
            HEIC_HINT, "; a HEIC photo is to be saved as JPEG first"
        )  # nobody here has pip
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, printable(reason)


@dataclass(frozen=True, eq=False)
class DecodedPicture:
    """A picture that was read.

    Args:
        pixels: what the backbone takes, uint8 [S, S, 3]: those that `wdae add` and `wdae predict` see.
        stored: a JPEG made from the pixels alone, without metadata; empty where it is not to be kept.
        thumbnail: a small one.
        width: of what is stored.
        height: of what is stored.
    """

    pixels: Pixels
    stored: bytes = b""
    thumbnail: bytes = b""
    width: int = 0
    height: int = 0


class Decoders:
    """A few processes that decode pictures, started when first used and again when one has died.

    Any thread may call them. A picture that cannot be read, that takes too much memory or time, or that kills
    its process raises :class:`Refused`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.count = limits.decoders or min(4, available_cores())
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # the last one used is the warmest
        for _ in range(self.count):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="decode")
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the processes now, so that the first picture does not wait for them."""
        waiting = [self._idle.get() for _ in range(self.count)]
        for one in waiting:
            self._idle.put(one or _Process(self.limits))

    def read(self, name: str, data: bytes, rule: Preprocessing, keep: bool = True) -> DecodedPicture:
        """Decode one picture; without ``keep`` nothing is made to be stored."""
        try:
            return self._read(data, rule, keep)
        except DataError as error:
            raise Refused(name, str(error)) from None

    def _read(self, data: bytes, rule: Preprocessing, keep: bool) -> DecodedPicture:
        most = self.limits.picture_bytes
        if not data:
            raise DataError("the file is empty")
        if len(data) > most:
            raise DataError(f"the file has {size_text(len(data))}; at most {size_text(most)} are accepted")
        _refuse_other_kinds(data)
        one = self._idle.get()
        try:
            if one is None or not one.alive:
                one = _Process(self.limits)
            return one.read(data, rule, keep, self.limits.decoder_seconds)
        except _DeathError as death:
            if one is not None:
                one.kill()
            one = None
            raise DataError(str(death)) from None
        finally:
            if self._closed.is_set() and one is not None:
                one.kill()
                one = None
            self._idle.put(one)

    def read_all(
        self, pictures: Sequence[tuple[str, bytes]], rule: Preprocessing, keep: bool = True
    ) -> list[DecodedPicture | Refused]:
        """Many pictures with their names, as many at a time as there are processes; a bad one: its error."""

        def one(picture: tuple[str, bytes]) -> DecodedPicture | Refused:
            try:
                return self.read(*picture, rule, keep)
            except Refused as error:
                return error

        return list(self._threads.map(one, pictures))

    def close(self) -> None:
        """End the processes."""
        self._closed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(self.count):
            one = self._idle.get()
            if one is not None:
                one.kill()
            self._idle.put(None)


class _DeathError(Exception):
    pass


class _Process:
    def __init__(self, limits: Limits) -> None:
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wdae.serve.uploads.decoder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is the service's to answer
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.into, self.out = self.process.stdin, self.process.stdout
        self.ready = False
        try:
            send(self.into, {"pixels": limits.picture_pixels, "memory": limits.decoder_bytes})
        except OSError as error:
            raise _DeathError("no process to decode it could be started") from error

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def read(self, data: bytes, rule: Preprocessing, keep: bool, seconds: float) -> DecodedPicture:
        try:
            if not self.ready:
                self._answered(60.0)
                receive(self.out)
                self.ready = True
            send(self.into, {"rule": rule.facts(), "keep": keep}, data)
            self._answered(seconds)
            words, made = receive(self.out)
        except (OSError, EOFError, ValueError) as error:
            raise _DeathError(f"the process that decoded it died ({self._cause()})") from error
        if "refused" in words:
            raise DataError(printable(words["refused"]))
        side, size = rule.image_size, words["prepared"]
        pixels = np.frombuffer(made, np.uint8, size).reshape(side, side, 3)
        if not keep:
            return DecodedPicture(pixels)
        end = size + words["stored"]
        return DecodedPicture(pixels, made[size:end], made[end:], words["width"], words["height"])

    def _answered(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not select.select([self.out], [], [], max(0.0, until - time.monotonic()))[0]:
            if time.monotonic() >= until:
                self.kill()
                raise _DeathError(f"decoding it takes longer than {seconds:g} s")

    def _cause(self) -> str:
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it went silent"
        return f"signal {-code}" if code < 0 else f"status {code}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.into, self.out):
            with suppress(OSError):  # what was still to be written has nowhere to go
                pipe.close()


def _refuse_other_kinds(data: bytes) -> None:
    """Say what people send most often instead of a picture by its name."""
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    kinds = {
        "an SVG drawing, which may hold scripts": head.startswith((b"<svg", b"<?xml")) or b"<svg" in head,
        "an HTML page": head.startswith((b"<!doctype", b"<html")),
        "a PDF": head.startswith(b"%pdf"),
        "a zip; send zips as an import": head.startswith(b"pk\x03\x04"),
    }
    for kind, found in kinds.items():
        if found and data[:3] != b"\xff\xd8\xff" and data[:4] not in (b"\x89PNG", b"RIFF", b"GIF8"):
            raise DataError(f"not a picture but {kind}; send JPEG, PNG, WebP, GIF, BMP or TIFF")
