"""``model.json``: what lies in a model's folder, checked before anything of it is used.

The format is described in docs/model-format.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wdae.errors import StorageError
from wdae.storage import files as storage
from wdae.storage import records
from wdae.version import __version__

FORMAT = "wdae-model"
VERSION = 1
MANIFEST = "model.json"

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: dict[int, Upgrade] = {}
"""From version n to n + 1, by n. A function gets the manifest and returns the newer one; tensors keep their
names for good, and new ones have a default for files that lack them. A folder is upgraded in memory when it
is read, and on disk with its next change."""


def is_model(path: str | Path) -> bool:
    """Whether a folder holds a model, as far as its manifest goes."""
    file = Path(path) / MANIFEST
    if not file.is_file():
        return False
    try:
        value = records.read_json(file)
    except StorageError:
        return True  # it is meant to be one, and whoever opens it will be told
    return isinstance(value, dict) and value.get("format") == FORMAT


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the manifest: the moment at which a change takes effect."""
    value = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": f"wdae {__version__}",
        **content,
    }
    text = json.dumps(value | {"sha256": _digest(value)}, ensure_ascii=False, separators=(",", ":"))
    storage.write_text(folder / MANIFEST, text + "\n")


def read_manifest(
    folder: str | Path, upgrades: Mapping[int, Upgrade] | None = None, newest: int = VERSION
) -> dict[str, Any]:
    """The manifest of a folder, brought up to the newest version."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        what = "does not exist" if not folder.exists() else f"has no {MANIFEST}, so it is not a model"
        raise StorageError(f"{folder} {what}; make one with: wdae learn -o {folder}")
    value = records.read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise StorageError(f"{path} is not the manifest of a model of wdae")
    version = value.get("version")
    if not isinstance(version, int) or version < 1:
        raise StorageError(f"{path} is altered: its format version is {version!r}")
    if version > newest:
        raise StorageError(
            f"{folder} has model format {version}, newer than {newest}, the newest this version of wdae"
            " reads; upgrade wdae"
        )
    if value.pop("sha256", None) != _digest(value):
        raise StorageError(f"{path} is altered: its checksum does not match; copy the model again")
    steps = UPGRADES if upgrades is None else upgrades
    for number in range(version, newest):
        value = {**steps[number](value), "version": number + 1}
    return value


def entry(path: Path) -> dict[str, Any]:
    """What the manifest keeps of a file."""
    return {"bytes": path.stat().st_size, "sha256": storage.sha256(path)}


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], verify: bool) -> None:
    """Every file is there, whole and unaltered."""
    for name, kept in files.items():
        path = folder / name
        if Path(name).name != name:
            raise StorageError(f"{folder / MANIFEST} is altered: it names the file {name!r}")
        if not path.is_file():
            raise StorageError(f"{path} is missing; copy the whole folder of the model again")
        size = path.stat().st_size
        if size != kept["bytes"]:
            raise StorageError(
                f"{path} is truncated or altered: {size} bytes, written as {kept['bytes']}; copy it again"
            )
        if verify and storage.sha256(path) != kept["sha256"]:
            raise StorageError(f"{path} is altered: its checksum does not match; copy it again")


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
