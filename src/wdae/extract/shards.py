"""Shards: an extraction in independent parts, on any machines and in any order, then merged into one bank.

``wdae extract ... --shard 2/8 -o part-2`` computes every chunk of the second eighth; ``wdae bank merge part-*
-o bank`` checks that all eight fit together and writes the bank that one process would have written, bit for
bit. No engine, no network: for job arrays and CI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.bank.encoding import Encoding
from wdae.bank.format import stream_bank
from wdae.errors import BankError, StorageError, listed
from wdae.extract.views import Rows
from wdae.storage import manifest as manifests
from wdae.storage.files import atomic_folder
from wdae.storage.manifest import Manifest
from wdae.storage.records import ClassNames, Count, Info, Size
from wdae.storage.shard import Shard
from wdae.storage.tensors import Blocks, save_tensors

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


def save_shard(
    job: ExtractJob,
    shard: Shard,
    features: Callable[[], Iterator[Tensor]],
    dim: int,
    rows: Rows,
    path: Path,
) -> None:
    """Write the features of a shard's pictures, in parts, and what the bank will need beside them."""
    tensors: dict[str, Tensor | Blocks] = {"rows": torch.from_numpy(rows)}
    tensors |= {name: column for name, column in job.columns(rows).items() if column is not None}
    tensors["features"] = Blocks(torch.float32, (len(rows), dim), features)
    with atomic_folder(path) as folder:
        save_tensors(folder / _TENSORS, tensors)
        content: dict[str, Any] = {
            "number": shard.number,
            "parts": shard.parts,
            "images": len(rows),
            "plan": {**job.plan(), "data set": job.data_set()},
            "dtype": job.config.dtype,
            "cosine_scale": job.classifier()[1],
            "info": job.info(),
            "class_names": list(job.images.class_names),
            "files": {_TENSORS: manifests.entry(folder / _TENSORS)},
        }
        manifests.write(ShardManifest, folder, content)


def merge_shards(paths: Sequence[Path], out: Path) -> None:
    """Write the bank of all shards of an extraction, given in any order; features pass through, part by part.

    A shard that is missing, given twice, damaged or of another extraction is refused by name.
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
    in_order = sorted(read, key=lambda pair: pair[1].number)
    found: dict[str, list[Tensor]] = {}
    sizes: set[int] = set()
    for path, manifest in in_order:  # one open at a time
        part = manifests.read_tensors(path, manifest, _TENSORS)
        _check_tensors(path, part, manifest)
        sizes |= {part.pop("features").shape[1]} if manifest.images else set()
        for name, column in part.items():
            found.setdefault(name, []).append(column.clone())
    if len(sizes) != 1:
        raise StorageError(f"the shards are altered: features of sizes {sorted(sizes)}; make them anew")
    if bool((torch.cat(found["rows"]).diff() <= 0).any()):
        raise StorageError("the shards are altered: pictures are doubled or out of order; make them anew")
    columns: dict[str, Tensor | None] = {
        name: torch.cat(found[name])
        for name in ("labels", "parts", "query_only")
        if len(found.get(name, ())) == len(read)
    }
    columns["base_weights"] = found.get("base_weights", [None])[0]
    stream_bank(
        FeatureBank,
        out,
        first.dtype,
        lambda: (
            manifests.read_tensors(path, manifest, _TENSORS, verify=False)["features"]
            for path, manifest in in_order
        ),
        sizes.pop(),
        columns,
        class_names=first.class_names,
        cosine_scale=first.cosine_scale,
        info=first.info,
    )


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
