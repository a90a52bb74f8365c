"""Named tensors on disk: safetensors files, their header checked before anything is mapped."""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from wdae.errors import StorageError
from wdae.storage import records
from wdae.storage.files import atomic_file, cannot_write, open_regular

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER = 16 * 2**20
MAX_TENSORS = 50_000
_TYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
}


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to a safetensors file, atomically.

    Tensors on any device and with any strides; two that share memory are written as two.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    rows: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        row = tensor.detach().cpu().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage in seen else row  # the format refuses shared memory
        seen.add(storage)
    with atomic_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(rows, temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:  # the library reports a full disk in its own class
            number = re.search(r"os error (\d+)", str(error))
            code = (int(number[1]), os.strerror(int(number[1]))) if number else (str(error),)
            raise cannot_write(Path(path), OSError(*code)) from error
        temporary.chmod(mode)  # the library leaves files that only their owner may read


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
