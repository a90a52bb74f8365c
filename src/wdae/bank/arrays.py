"""The kinds of file that features, labels and names come in, each read as arrays by name."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wdae.errors import BankError, MissingExtraError, nearest
from wdae.storage import records
from wdae.storage.tensors import open_tensors

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

LABEL_COLUMNS = ("label", "labels", "class", "target", "y")
PART_COLUMNS = ("part", "parts", "split")


def read_arrays(path: str | Path) -> Arrays:
    """The arrays of a file by name, chosen by its suffix; nothing in the file is ever executed.

    A file with a single unnamed array (.npy, .txt, .json list) gives it the name ``""``.
    """
    path = Path(path)
    if not path.is_file():
        raise BankError(f"{path} does not exist" if not path.exists() else f"{path} is a folder; give a file")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise BankError(f"cannot read {path}: unknown kind of file{nearest(path.suffix, _READERS)}")
    try:
        return reader(path)
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        raise BankError(f"cannot read {path}: {error}") from error


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _npy(path: Path) -> Arrays:
    return {"": np.load(path, allow_pickle=False, mmap_mode="r")}


def _safetensors(path: Path) -> Arrays:
    """Tensors, and lists of names in the metadata (a JSON list, or names with commas between)."""
    tensors, metadata = open_tensors(path)
    arrays: Arrays = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }
    for name in ("class_names", "classes"):
        if name in metadata and name not in arrays:
            text = metadata[name]
            arrays[name] = np.array(json.loads(text) if text.startswith("[") else text.split(","))
    return arrays


def _csv(path: Path) -> Arrays:
    """A header line, one image a line: a label column, perhaps a part column, all others features."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        header = [name.strip().lower() for name in next(lines, [])]
        label = next((i for i, name in enumerate(header) if name in LABEL_COLUMNS), None)
        part = next((i for i, name in enumerate(header) if name in PART_COLUMNS), None)
        if label is None:
            raise ValueError(
                f"its first line has no column called {' or '.join(map(repr, LABEL_COLUMNS))};"
                " give a header with a label column, an optional part column and one column a feature"
            )
        wanted = [i for i in range(len(header)) if i not in (label, part)]
        rows: list[Array] = []
        labels: list[str] = []
        parts: list[str] = []
        for line in lines:
            if not line:
                continue
            if len(line) != len(header):
                raise ValueError(
                    f"line {lines.line_num} has {len(line)} columns, the header has {len(header)}"
                )
            rows.append(_numbers([line[i] for i in wanted], [header[i] for i in wanted], lines.line_num))
            labels.append(line[label].strip())
            if part is not None:
                parts.append(line[part])
    arrays: Arrays = {"features": np.stack(rows) if rows else np.zeros((0, len(wanted)), np.float32)}
    arrays["labels"] = np.array(list(map(int, labels)) if all(map(str.isdigit, labels)) else labels)
    return arrays | ({"parts": np.array(parts)} if part is not None else {})


def _numbers(cells: list[str], columns: list[str], line: int) -> Array:
    try:
        return np.array(cells, dtype=np.float32)
    except ValueError:
        for cell, column in zip(cells, columns, strict=True):
            try:
                float(cell)
            except ValueError:
                raise ValueError(f"line {line}, column {column!r}: {cell!r} is not a number") from None
        raise


def _hdf5(path: Path) -> Arrays:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "hdf5", f"reading {path}") from None
    with h5py.File(path, "r") as file:
        return {name: np.asarray(item[()]) for name, item in file.items() if isinstance(item, h5py.Dataset)}


def _lines(path: Path) -> Arrays:
    words = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    return {"": np.array(list(map(int, words)) if words and all(map(str.isdigit, words)) else words)}


def _json(path: Path) -> Arrays:
    value = records.read_json(path)
    arrays: Arrays = (
        {k: np.array(v) for k, v in value.items()} if isinstance(value, dict) else {"": np.array(value)}
    )
    return arrays


_READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".csv": _csv,
    ".tsv": _csv,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
    ".txt": _lines,
    ".json": _json,
}
