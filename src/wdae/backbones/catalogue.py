"""What can be used as a backbone: what ships, what packages have, what a file of entries offers to fetch."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from wdae.backbones.preprocessing import Preprocessing
from wdae.config.shipped import ASSETS, EMBEDDED, EMBEDDED_BACKBONE
from wdae.errors import DataError, nearest
from wdae.storage.files import atomic_folder
from wdae.storage.records import Digest, Record, Text, read_json, read_record

_PIECE = 2**20
_PATIENCE = 60.0  # seconds without a byte
_MOST_BYTES = 2**31
ENTRIES = ASSETS / "backbones.json"
"""Backbones of others that can be fetched; docs/guides/backbones.md says where their digests come from."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


class Facts(Record):
    """What one wants to know of a backbone before using it.

    Args:
        name: what ``--backbone`` takes.
        megabytes: of its weights.
        features: size D of its features.
        seen: the data that it was trained on: what it may not be compared on.
    """

    name: Text
    about: Text
    megabytes: Annotated[float, Field(ge=0)]
    features: Annotated[int, Field(ge=1, le=2**20)]
    image_size: Annotated[int, Field(ge=1, le=4096)]
    licence: Text
    seen: Text


def _embedded() -> Facts:
    card = read_json(EMBEDDED_BACKBONE / "model.json")
    return Facts(
        name=EMBEDDED,
        about="ResNet-12 of our own, inside the package",
        megabytes=round((EMBEDDED_BACKBONE / "model.safetensors").stat().st_size / 1e6, 1),
        features=card["backbone_options"]["widths"][-1],
        image_size=card["image_size"],
        licence="Apache-2.0",
        seen=f"{len(card['class_names'])} classes of MiniImageNet (ImageNet pictures)",
    )


SHIPPED = (
    _embedded(),
    Facts(
        name="lite0",
        about="EfficientNet-Lite0, in the extra wdae[lite]",
        megabytes=18.8,
        features=1280,
        image_size=224,
        licence="Apache-2.0",
        seen="ImageNet, 1,000 classes",
    ),
)
"""Those that need no download and no other library than an extra of ours."""

OTHERS = {
    "timm:NAME": "any model of timm, prepared as its data configuration says",
    "transformers:NAME": "any image model of transformers, prepared as its image processor says",
    "onnx:FILE": "any exported embedder (extra wdae[onnx]), prepared as FILE.json or options say",
    "pkg.module:factory": "a function of yours that returns a torch module",
    "FOLDER": "what wdae pretrain has trained",
}
"""Ways to bring another one."""


class Download(Record):
    """A backbone that can be fetched: an ONNX file at an address, with the digest that it must have."""

    name: Name
    about: Text
    url: Text
    sha256: Digest
    bytes: Annotated[int, Field(ge=1, le=_MOST_BYTES)]
    licence: Text
    seen: Text
    preprocessing: Preprocessing
    output: Text | None = None
    features: Annotated[int, Field(ge=1, le=2**20)] | None = None

    def facts(self) -> dict[str, Any]:
        """As :class:`Facts` has them."""
        known = self.model_dump(include={"name", "about", "licence", "seen", "features"})
        return known | {
            "megabytes": round(self.bytes / 1e6, 1),
            "image_size": self.preprocessing.image_size,
        }


class Downloads(Record):
    """A file of entries."""

    backbones: Annotated[tuple[Download, ...], Field(min_length=1, max_length=1000)]


def downloads(file: str | Path = ENTRIES) -> dict[str, Download]:
    """The entries of a file by their names."""
    return {entry.name: entry for entry in read_record(Downloads, file).backbones}


def find_download(file: str | Path, name: str | None) -> Download:
    """The entry of a name; the name may be left out where there is one entry."""
    entries = downloads(file)
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        where = "wdae" if file == ENTRIES else file
        message = (
            f"{where} has no entry {name!r}" if name is not None else f"{where} has several entries; name one"
        )
        raise DataError(message + nearest(name or "", entries))
    return entries[name]


def fetch(entry: Download, folder: str | Path) -> Path:
    """Download an entry into the new folder ``folder``, and return the ONNX file in it.

    How it wants its pictures is written beside it. What has another digest or more bytes than the entry says
    is not kept.
    """
    if urllib.parse.urlsplit(entry.url).scheme not in ("http", "https"):
        raise DataError(f"the address of {entry.name} is no web address: {entry.url}")
    stated = entry.preprocessing.model_dump(mode="json", exclude_none=True)
    if entry.output is not None:
        stated["output"] = entry.output
    with atomic_folder(folder) as place:
        file = place / f"{entry.name}.onnx"
        _download(entry, file)
        Path(f"{file}.json").write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    return Path(folder) / file.name


def _download(entry: Download, file: Path) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(entry.url, timeout=_PATIENCE) as answer, file.open("wb") as out:
            while piece := answer.read(_PIECE):
                size += len(piece)
                if size > entry.bytes:
                    raise DataError(f"{entry.url} gives more than the {entry.bytes} bytes that it should")
                digest.update(piece)
                out.write(piece)
    except OSError as error:  # urllib's own errors are OSErrors
        raise DataError(
            f"{entry.url} cannot be fetched: {error}; check the connection, then run this again"
        ) from error
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        raise DataError(
            f"{entry.url} gives {size} bytes with SHA-256 {digest.hexdigest()[:16]}…; the entry says"
            f" {entry.bytes} and {entry.sha256[:16]}…. It is another file than was meant, and is not kept"
        )
