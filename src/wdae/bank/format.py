"""A bank on disk: a folder with ``manifest.json`` and ``bank.safetensors``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from wdae.bank.checks import check_base_weights, check_query_only, check_structure
from wdae.bank.encoding import DTYPES, Encoding, blocks, encode
from wdae.errors import BankError, StorageError
from wdae.parts import Part
from wdae.storage import manifest as manifests
from wdae.storage.files import atomic_folder
from wdae.storage.manifest import Manifest
from wdae.storage.records import ClassNames, Count, Info, Record, Size, Text, shown
from wdae.storage.tensors import Blocks, load_tensors, save_tensors

if TYPE_CHECKING:
    from wdae.bank.feature_bank import FeatureBank

TENSORS = "bank.safetensors"
_TYPES = {
    "features": ("float32", "float16", "int8"),
    "scales": ("float32",),
    "labels": ("int64",),
    "parts": ("uint8",),
    "base_weights": ("float32",),
    "query_only": ("bool",),
}


class _PartSize(Record):
    classes: Count
    images: Count


class _TensorShape(Record):
    shape: Annotated[tuple[Count, ...], Field(max_length=2)]
    dtype: Text


class BankManifest(Manifest):
    """``manifest.json`` of a bank. Version 2 has a tensor ``query_only``; banks without are written as 1."""

    FORMAT, VERSION, FILE, NOUN = "wdae-feature-bank", 2, "manifest.json", "a feature bank"
    REMEDY = "; make one with `wdae extract` or `wdae bank import`"

    dtype: Encoding
    dim: Size
    images: Count
    parts: dict[Part, _PartSize]
    tensors: Annotated[dict[str, _TensorShape], Field(max_length=len(_TYPES))]
    cosine_scale: Annotated[float, Field(gt=0)] | None
    info: Info
    class_names: ClassNames


MANIFEST = BankManifest.FILE


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
    with atomic_folder(path) as folder:
        save_tensors(folder / TENSORS, tensors)
        _write_manifest(bank, folder, encoding, tensors)


def stream_bank(
    kind: type[FeatureBank],
    path: str | Path,
    encoding: Encoding,
    features: Callable[[], Iterator[Tensor]],
    dim: int,
    columns: Mapping[str, Tensor | None],
    **facts: Any,
) -> None:
    """As :func:`save_bank`, of features that come part after part and are never in memory together.

    Args:
        features: the parts ``[n, dim]`` in order, as often as asked.
        columns: ``labels`` and ``parts``; ``base_weights`` and ``query_only`` where there are any.
        facts: class names, cosine scale and info, as :meth:`FeatureBank.build` takes them.
    """

    def encoded() -> Iterator[tuple[Tensor, Tensor | None]]:
        first = 0
        for part in features():
            for rows in blocks(len(part)):
                yield encode(part[rows], None, encoding, first)
                first += rows.stop - rows.start

    given = {name: column for name, column in columns.items() if column is not None}
    if "query_only" in given and not bool(given["query_only"].any()):
        del given["query_only"]
    shape = (len(given["labels"]), dim)
    tensors: dict[str, Tensor | Blocks] = {**given}
    tensors["features"] = Blocks(DTYPES[encoding], shape, lambda: (rows for rows, _ in encoded()))
    if encoding == "int8":
        tensors["scales"] = torch.cat([scales for _, scales in encoded() if scales is not None])
    with atomic_folder(path) as folder:
        save_tensors(folder / TENSORS, tensors)
        written: dict[str, Any] = {**load_tensors(folder / TENSORS), **facts}
        bank = kind.build(**written)  # mapped, and all of it is checked
        _write_manifest(bank, folder, encoding, tensors)


def _write_manifest(
    bank: FeatureBank, folder: Path, encoding: Encoding, tensors: Mapping[str, Tensor | Blocks]
) -> None:
    content: dict[str, Any] = {
        "dtype": encoding,
        "dim": bank.dim,
        "images": len(bank.labels),
        "parts": {
            part.value: {"classes": sum(map(bool, bank.counts(part))), "images": sum(bank.counts(part))}
            for part in Part
        },
        "tensors": {name: _shape(tensor) for name, tensor in tensors.items()},
        "cosine_scale": bank.cosine_scale,
        "info": bank.info,
        "class_names": list(bank.class_names),
        "files": {TENSORS: manifests.entry(folder / TENSORS)},
    }
    manifests.write(BankManifest, folder, content, version=2 if bank.query_only is not None else 1)


def open_bank(kind: type[FeatureBank], path: str | Path, *, verify: bool = True) -> FeatureBank:
    """Open the bank in folder ``path``; refuses missing, truncated, altered files and newer formats."""
    folder = Path(path)
    manifest = read_manifest(folder)
    tensors = manifests.read_tensors(folder, manifest, TENSORS, verify=verify)
    found = {name: _shape(tensor) for name, tensor in tensors.items()}
    declared = {name: entry.model_dump(mode="json") for name, entry in manifest.tensors.items()}
    for name in ("features", "labels", "parts", *found, *declared):
        entry = found.get(name)
        if entry is None or entry != declared.get(name) or entry["dtype"] not in _TYPES.get(name, ()):
            raise StorageError(
                f"{folder / TENSORS} is altered: tensor {shown(name)} is not as the manifest says"
            )
    bank = kind(
        features=tensors["features"],
        scales=tensors.get("scales"),
        labels=tensors["labels"],
        parts=tensors["parts"],
        class_names=manifest.class_names,
        base_weights=tensors.get("base_weights"),
        cosine_scale=manifest.cosine_scale,
        info=manifest.info,
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


def read_manifest(folder: str | Path) -> BankManifest:
    """The manifest of the bank in ``folder``, its own checksum compared."""
    return manifests.read(BankManifest, folder)


def size_on_disk(folder: str | Path) -> int:
    """Bytes of all files of a bank."""
    return sum(file.stat().st_size for file in Path(folder).iterdir() if file.is_file())


def _shape(tensor: Tensor | Blocks) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
