"""Shards: an extraction in independent parts, on any machines and in any order, then merged into one bank.

``wdae extract ... --shard 2/8 -o part-2`` computes every chunk of the second eighth; ``wdae bank merge part-*
-o bank`` checks that all eight fit together and writes the bank that one process would have written, bit for
bit. No engine, no network: for job arrays and CI.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.bank.encoding import Encoding
from wdae.errors import BankError, StorageError, listed
from wdae.extract.views import Rows
from wdae.storage import manifest as manifests
from wdae.storage.files import atomic_folder
from wdae.storage.manifest import Manifest
from wdae.storage.records import ClassNames, Count, Info, Size
from wdae.storage.shard import Shard
from wdae.storage.tensors import save_tensors

if TYPE_CHECKING:
    from wdae.extract.job import ExtractJob

_TENSORS = "shard.safetensors"


class ShardManifest(Manifest):
    """``shard.json``: which part of which extraction a folder is."""

    FORMAT: ClassVar[str] = "wdae-bank-shard"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = "shard.json"
    NOUN: ClassVar[str] = "a shard of a feature bank"
    REMEDY: ClassVar[str] = "; make one with: wdae extract ... --shard 1/8"

    number: Size
    parts: Size
    images: Count
    plan: Info
    dtype: Encoding
    cosine_scale: Annotated[float, Field(gt=0)] | None
    info: Info
    class_names: ClassNames


def save_shard(job: ExtractJob, shard: Shard, features: Tensor, rows: Rows, path: Path) -> None:
    """Write the features of a shard's pictures, and what the bank will need beside them."""
    images = job.images
    weights, scale = job.classifier()
    at = torch.from_numpy(rows)
    tensors = {"features": features, "rows": at}
    tensors |= {"labels": torch.from_numpy(images.labels)[at], "parts": torch.from_numpy(images.parts)[at]}
    if images.query_only is not None:
        tensors["query_only"] = torch.from_numpy(images.query_only)[at]
    if weights is not None:
        tensors["base_weights"] = weights
    with atomic_folder(path) as folder:
        save_tensors(folder / _TENSORS, tensors)
        content: dict[str, Any] = {
            "number": shard.number,
            "parts": shard.parts,
            "images": len(rows),
            "plan": {**job.plan(), "data set": job.data_set()},
            "dtype": job.config.dtype,
            "cosine_scale": scale,
            "info": job.info(),
            "class_names": list(images.class_names),
            "files": {_TENSORS: manifests.entry(folder / _TENSORS)},
        }
        manifests.write(ShardManifest, folder, content)


def merge_shards(paths: Sequence[Path]) -> tuple[FeatureBank, Encoding]:
    """The bank of all shards of an extraction, given in any order, and how it is to be stored.

    One that is missing, given twice, damaged or of another extraction is refused by name.
    """
    read = [(path, manifests.read(ShardManifest, path)) for path in paths]
    if not read:
        raise BankError("no shards to merge; give the folders that wdae extract --shard made")
    first_path, first = read[0]
    by_number: dict[int, Path] = {}
    for path, manifest in read:
        _refuse_other(path, manifest, first_path, first)
        if manifest.number in by_number:
            both, which = f"{by_number[manifest.number]} and {path}", f"{manifest.number}/{manifest.parts}"
            raise BankError(f"shard {which} is given twice: {both}; give each once")
        by_number[manifest.number] = path
    if missing := [str(n) for n in range(1, first.parts + 1) if n not in by_number]:
        raise BankError(
            f"of {first.parts} shards {len(missing)} are missing: {listed(missing)}; make them with"
            f" --shard {missing[0]}/{first.parts}"
        )
    parts = []
    for path, manifest in sorted(read, key=lambda pair: pair[1].number):
        parts.append(manifests.read_tensors(path, manifest, _TENSORS))
        _check_tensors(path, parts[-1], manifest)
    rows = torch.cat([part["rows"] for part in parts])
    if bool((rows.diff() <= 0).any()):
        raise StorageError("the shards are altered: pictures are doubled or out of order; make them anew")
    columns = {
        name: torch.cat([part[name] for part in parts])
        for name in ("features", "labels", "parts", "query_only")
        if all(name in part for part in parts)
    }
    bank = FeatureBank.build(
        columns["features"],
        columns["labels"],
        first.class_names,
        columns["parts"],
        base_weights=parts[0].get("base_weights"),
        cosine_scale=first.cosine_scale,
        info=first.info,
        query_only=columns.get("query_only"),
    )
    return bank, first.dtype


def _refuse_other(path: Path, found: ShardManifest, first_path: Path, first: ShardManifest) -> None:
    facts = {"number of shards": "parts", "class names": "class_names", "cosine scale": "cosine_scale"}
    apart = [name for name, key in facts.items() if getattr(found, key) != getattr(first, key)]
    apart += [key for key in sorted({*found.plan, *first.plan}) if found.plan.get(key) != first.plan.get(key)]
    if apart:
        raise BankError(
            f"{path} does not belong to {first_path}: they differ in {listed(apart)}; merge shards of one"
            " model, recipe and data set"
        )


def _check_tensors(path: Path, found: dict[str, Tensor], manifest: ShardManifest) -> None:
    kinds = {"features": torch.float32, "rows": torch.int64, "labels": torch.int64, "parts": torch.uint8}
    n = manifest.images
    for name, kind in kinds.items():
        tensor, axes = found.get(name), 2 if name == "features" else 1
        if tensor is None or tensor.dtype != kind or tensor.ndim != axes or len(tensor) != n:
            raise StorageError(f"{path} is altered: {name} are not of {n} pictures; make the shard anew")
