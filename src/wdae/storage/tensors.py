"""Named tensors on disk: safetensors files, their header checked before anything is mapped."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from wdae.errors import StorageError
from wdae.storage import records
from wdae.storage.files import atomic_file, open_regular

if TYPE_CHECKING:
    from torch import Tensor, dtype

MAX_HEADER = 16 * 2**20
MAX_TENSORS = 50_000
_TYPES = {
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}  # in the order in which the format's own library writes them


class Blocks(NamedTuple):
    """A tensor in blocks of rows, which are made one after the other while it is written."""

    dtype: dtype
    shape: tuple[int, ...]
    made: Callable[[], Iterator[Tensor]]


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor | Blocks], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to a safetensors file, atomically; byte for byte as the format's library does.

    Tensors on any device and with any strides; two that share memory are written as two. Nothing is copied
    but what lies elsewhere than in memory, row after row.
    """
    import torch

    codes = {getattr(torch, name): code for code, (name, _) in _TYPES.items()}
    order = list(_TYPES)
    names = sorted(tensors, key=lambda name: (order.index(codes[tensors[name].dtype]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        code, shape = codes[tensors[name].dtype], list(tensors[name].shape)
        start, end = end, end + math.prod(shape) * _TYPES[code][1]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = tensors[name]
            for block in tensor.made() if isinstance(tensor, Blocks) else (tensor,):
                plain = block.detach().cpu().contiguous().reshape(-1)
                file.write(plain.view(torch.uint8).numpy().data if len(plain) else b"")
        if file.tell() != 8 + len(text) + end:
            raise ValueError(f"{path}: blocks of another size than was said")


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of the safetensors file ``path``; they are mapped, not read, until used."""
    return open_tensors(path)[0]


def load_parts(paths: Sequence[Path], count: int, dim: int | None = None) -> list[dict[str, Tensor]]:
    """Files of ``features`` [n, D] and their ``rows`` [n], numbers of some of ``count`` pictures.

    They are part of unfinished work, whose maker nobody knows. ``dim`` is the size D that they must have.
    """
    import torch

    parts = [load_tensors(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        features, rows = part.get("features"), part.get("rows")
        fits = features is not None and features.dim() == 2 and features.is_floating_point()
        if features is None or rows is None or not fits or rows.shape != features.shape[:1]:
            raise StorageError(f"{path} is altered: no features and their rows; remove its folder")
        dim = features.shape[1] if dim is None else dim
        known = rows.dtype == torch.int64 and bool(((rows >= 0) & (rows < count)).all())
        if not known or features.shape[1] != dim:
            raise StorageError(
                f"{path} is altered: not features of size {dim} of {count} pictures; remove its folder"
            )
    return parts


def open_tensors(path: str | Path, *, follow: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As :func:`load_tensors`, together with the file's metadata; no link unless ``follow``."""
    with open_regular(path, follow=follow) as file:
        return tensors_in(file, path)


def tensors_in(file: BinaryIO, path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of an open safetensors file; ``path`` is for messages."""
    import torch

    data, listed, metadata = _mapped(file, path)

    def tensor(slot: _Slot) -> Tensor:
        dtype: torch.dtype = getattr(torch, slot.dtype)
        if not slot.n:
            return torch.empty(slot.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype, count=slot.n, offset=slot.start).view(slot.shape)

    return {name: tensor(slot) for name, slot in listed.items()}, metadata


def arrays_in(file: BinaryIO, path: str | Path) -> tuple[dict[str, Any], dict[str, str]]:
    """As :func:`tensors_in`, as numpy arrays and without torch."""
    import numpy as np

    data, listed, metadata = _mapped(file, path)
    arrays = {}
    for name, slot in listed.items():
        if slot.dtype.startswith(("bfloat", "float8")):
            raise StorageError(f"{path}: {records.shown(name)} is of type {slot.dtype}, which numpy has not")
        flat = np.frombuffer(data, dtype=slot.dtype, count=slot.n, offset=slot.start)
        arrays[name] = flat.reshape(slot.shape)
    return arrays, metadata


def names_in(file: BinaryIO, path: str | Path) -> tuple[list[str], dict[str, str]]:
    """The names of an open safetensors file's tensors, and its metadata."""
    _, listed, metadata = _mapped(file, path)
    return list(listed), metadata


class _Slot(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    n: int
    start: int


def _mapped(file: BinaryIO, path: str | Path) -> tuple[mmap.mmap, dict[str, _Slot], dict[str, str]]:
    """The file as private memory, where each tensor lies in it, and the metadata."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or length > size - 8:
        raise _broken(path, "its header is cut short")
    if length > MAX_HEADER:
        raise StorageError(f"{path} has a header of {length} bytes; at most {MAX_HEADER} are read")
    try:
        header = records.parse(file.read(length), path)
    except StorageError as error:
        raise _broken(path, str(error).partition(": ")[2] or str(error)) from None
    metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _broken(path, "its header is ill-formed")
    if len(header) > MAX_TENSORS:
        raise StorageError(f"{path} holds {len(header)} tensors; at most {MAX_TENSORS} are read")
    listed = {name: _slot(name, entry, 8 + length, path) for name, entry in header.items()}
    end = 8 + length
    for slot in sorted(listed.values(), key=lambda slot: (slot.start, slot.n)):
        if slot.start != end:
            raise _broken(path, "its tensors overlap or leave gaps")
        end += slot.n * _WIDTHS[slot.dtype]
    if end != size:
        raise _broken(path, f"{size} bytes, its header speaks of {end}")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), listed, metadata


_WIDTHS = dict(_TYPES.values())


def _slot(name: str, entry: Any, data: int, path: str | Path) -> _Slot:
    """Where a tensor lies, if its shape and type take just the bytes that its offsets name."""
    try:
        (dtype, width), shape, (start, stop) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, start, stop)) and len(shape) <= 16
        if not whole or math.prod(shape) * width != stop - start:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _broken(path, f"tensor {records.shown(name)} is ill-formed") from None
    return _Slot(dtype, tuple(shape), math.prod(shape), data + start)


def _broken(path: str | Path, why: str) -> StorageError:
    return StorageError(f"{path} is truncated or altered: not a whole safetensors file ({why})")
