"""A bank on disk: a folder with ``manifest.json`` and ``bank.safetensors``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.bank.checks import check_base_weights, check_query_only, check_structure
from wdae.bank.encoding import Encoding, encode
from wdae.errors import BankError, StorageError
from wdae.parts import Part
from wdae.storage import files as storage
from wdae.storage import records
from wdae.storage.tensors import load_tensors, save_tensors
from wdae.version import __version__

if TYPE_CHECKING:
    from wdae.bank.feature_bank import FeatureBank

FORMAT = "wdae-feature-bank"
VERSION = 2
"""1: the beginning; 2: a tensor ``query_only``. Banks without one are written as 1, for older readers."""
MANIFEST = "manifest.json"
TENSORS = "bank.safetensors"


def save_bank(bank: FeatureBank, path: str | Path, encoding: Encoding) -> None:
    """Write ``bank`` to the new folder ``path``; nothing is visible there until all of it is."""
    features, scales = encode(bank.features, bank.scales, encoding)
    tensors = {"features": features, "labels": bank.labels, "parts": bank.parts}
    if scales is not None:
        tensors["scales"] = scales
    if bank.base_weights is not None:
        tensors["base_weights"] = bank.base_weights
    if bank.query_only is not None:
        tensors["query_only"] = bank.query_only
    with storage.atomic_folder(path) as folder:
        save_tensors(folder / TENSORS, tensors)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION if bank.query_only is not None else 1,
            "written_by": f"wdae {__version__}",
            "dtype": encoding,
            "dim": bank.dim,
            "images": len(bank.labels),
            "parts": {
                part.value: {"classes": sum(map(bool, bank.counts(part))), "images": sum(bank.counts(part))}
                for part in Part
            },
            "tensors": {
                name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
                for name, tensor in tensors.items()
            },
            "cosine_scale": bank.cosine_scale,
            "info": bank.info,
            "class_names": list(bank.class_names),
            "files": {
                TENSORS: {
                    "bytes": (folder / TENSORS).stat().st_size,
                    "sha256": storage.sha256(folder / TENSORS),
                }
            },
        }
        records.write_json(folder / MANIFEST, manifest | {"sha256": _digest(manifest)})


def open_bank(path: str | Path, *, verify: bool = True) -> FeatureBank:
    """Open the bank in folder ``path``; refuses missing, truncated, altered files and newer formats."""
    from wdae.bank.feature_bank import FeatureBank

    folder = Path(path)
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        _check_file(folder / name, entry, verify=verify)
    tensors = load_tensors(folder / TENSORS)
    for name, entry in manifest["tensors"].items():
        tensor = tensors.get(name)
        if tensor is None or [list(tensor.shape), str(tensor.dtype)] != [
            entry["shape"],
            f"torch.{entry['dtype']}",
        ]:
            raise StorageError(f"{folder / TENSORS} is altered: tensor {name!r} is not as the manifest says")
    bank = FeatureBank(
        features=tensors["features"],
        scales=tensors.get("scales"),
        labels=tensors["labels"],
        parts=tensors["parts"],
        class_names=tuple(manifest["class_names"]),
        base_weights=tensors.get("base_weights"),
        cosine_scale=manifest["cosine_scale"],
        info=manifest["info"],
        query_only=tensors.get("query_only"),
    )
    try:
        check_structure(bank.features, bank.scales, bank.labels, bank.parts, bank.class_names)
        check_query_only(bank.query_only, bank.parts)
        if bank.base_weights is not None:
            check_base_weights(bank.base_weights, bank.n_base, bank.dim, bank.cosine_scale)
    except BankError as error:
        raise BankError(f"{folder}: {error}") from error
    return bank


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of the bank in ``folder``, its own checksum compared."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        what = "does not exist" if not folder.exists() else f"has no {MANIFEST}, so it is not a feature bank"
        raise StorageError(f"{folder} {what}; make one with `wdae bank import` or `wdae bank synthesize`")
    manifest = records.read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StorageError(f"{path} is not the manifest of a feature bank of wdae")
    version = manifest.get("version")
    if not isinstance(version, int) or version < 1:
        raise StorageError(f"{path} is altered: its format version is {version!r}")
    if version > VERSION:
        raise StorageError(
            f"{folder} has bank format {version}, newer than {VERSION}, the newest this version of wdae"
            " reads; upgrade wdae"
        )
    if manifest.pop("sha256", None) != _digest(manifest):
        raise StorageError(f"{path} is altered: its checksum does not match; make or copy the bank again")
    return manifest


def _check_file(path: Path, entry: dict[str, Any], *, verify: bool) -> None:
    if not path.is_file():
        raise StorageError(f"{path} is missing; copy the whole folder of the bank again")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise StorageError(
            f"{path} is truncated or altered: {size} bytes, written as {entry['bytes']}; copy it again"
        )
    if verify and storage.sha256(path) != entry["sha256"]:
        raise StorageError(f"{path} is altered: its checksum does not match the manifest; copy it again")


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def size_on_disk(folder: str | Path) -> int:
    """Bytes of all files of a bank."""
    return sum(file.stat().st_size for file in Path(folder).iterdir() if file.is_file())
