"""The kinds of file that features, labels and names come in, each read as arrays by name.

The files may be a stranger's. Nothing in them is executed, no other file is opened for them, and the size
that a header claims is held against the size of the file before memory is asked for.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from wdae.errors import BankError, MissingExtraError, WdaeError, nearest
from wdae.storage.files import text_lines
from wdae.storage.records import read_json
from wdae.storage.tensors import open_tensors

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

LABEL_COLUMNS = ("label", "labels", "class", "target", "y")
PART_COLUMNS = ("part", "parts", "split")

MAX_ARRAYS = 1000
MAX_LETTERS = 1000
"""Of one label or name."""
UNPACKED_BYTES, UNPACKED_TIMES = 2**28, 50
"""A compressed file may grow to 256 MiB and 50 times its size; features hardly shrink when compressed."""

_KINDS = "biufSU"  # of dtypes: numbers and text, no objects
_HDF5_FILTERS = {1, 2, 3, 4, 5, 6, 32000}  # those built in and lzf; others would load a plugin


def read_arrays(path: str | Path) -> Arrays:
    """The arrays of a file by name, read according to its suffix.

    A file with a single unnamed array (.npy, .txt, .json list) gives it the name ``""``.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder; give a file" if path.is_dir() else "does not exist or is no file"
        raise BankError(f"{path} {what}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise BankError(f"cannot read {path}: unknown kind of file{nearest(path.suffix, _READERS)}")
    try:
        arrays = reader(path)
        for name, array in arrays.items():
            _check_kind(name, array.dtype, array.ndim)
    except WdaeError:
        raise
    except MemoryError as error:
        raise BankError(f"cannot read {path}: it needs more memory than there is") from error
    except Exception as error:  # the libraries raise nearly anything on a malformed file
        raise BankError(f"cannot read {path}: {_reason(error)}") from error
    return arrays


def _npz(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_count(len(members))
        unpacked = sum(member.file_size for member in members)
        _check_unpacked(unpacked, path)
        arrays: Arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays or any(c in name for c in "/\\:"):
                raise ValueError(f"{member.filename!r} is not the name of one array, such as 'features.npy'")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
                raise ValueError(f"{member.filename!r} is encrypted or compressed in an unusual way")
            with archive.open(member) as file:
                dtype, shape, order = _npy_header(file, member.file_size)
                size = math.prod(shape) * dtype.itemsize
                data = file.read(size)
            if len(data) != size:
                raise ValueError(f"{member.filename!r} is truncated")
            arrays[name] = np.frombuffer(data, dtype).reshape(shape, order=order)
    return arrays


def _npy(path: Path) -> Arrays:
    with path.open("rb") as file:
        dtype, shape, order = _npy_header(file, path.stat().st_size)
        if 0 in shape:
            return {"": np.zeros(shape, dtype)}
        return {"": np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape, order=order)}


def _npy_header(file: IO[bytes], size: int) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    """Type, shape and order of the array whose header ``file`` begins with; it must fit into ``size``."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"numpy format {version} is not known; accepted: 1.0 and 2.0")
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    _check_kind("", dtype, len(shape))
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header says {list(shape)} {dtype}, the file has {size} bytes")
    return dtype, shape, "F" if by_columns else "C"


def _safetensors(path: Path) -> Arrays:
    """Tensors, and lists of names in the metadata (a JSON list, or names with commas between)."""
    tensors, metadata = open_tensors(path, follow=True)
    _check_count(len(tensors))
    arrays: Arrays = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }
    for name in ("class_names", "classes"):
        if name in metadata and name not in arrays:
            text = metadata[name]
            arrays[name] = _words(json.loads(text) if text.startswith("[") else text.split(","))
    return arrays


def _csv(path: Path) -> Arrays:
    """A header line, one image a line: a label column, perhaps a part column, all others features."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = csv.reader(text_lines(path), delimiter=separator, strict=True)
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
            raise ValueError(f"line {lines.line_num} has {len(line)} columns, the header has {len(header)}")
        rows.append(_numbers([line[i] for i in wanted], [header[i] for i in wanted], lines.line_num))
        labels.append(line[label].strip())
        if part is not None:
            parts.append(line[part])
    arrays: Arrays = {"features": np.stack(rows) if rows else np.zeros((0, len(wanted)), np.float32)}
    arrays["labels"] = _column(labels)
    return arrays | ({"parts": _words(parts)} if part is not None else {})


def _numbers(cells: list[str], columns: list[str], line: int) -> Array:
    try:
        with np.errstate(over="ignore"):  # infinite values are named, with their rows, by the bank's check
            return np.array(cells, dtype=np.float32)
    except ValueError:
        for cell, column in zip(cells, columns, strict=True):
            try:
                float(cell)
            except ValueError:
                raise ValueError(
                    f"line {line}, column {_short(column)}: {_short(cell)} is not a number"
                ) from None
        raise


def _hdf5(path: Path) -> Arrays:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "hdf5", f"reading {path}") from None
    with h5py.File(path, "r") as file:
        _check_count(len(file))
        arrays: Arrays = {}
        for name in file:
            # The link itself is looked at first: following one may open another file.
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{_short(name)} is a link; only arrays that lie in the file are read")
            item = file[name]
            if isinstance(item, h5py.Dataset):
                arrays[name] = _hdf5_array(name, item, path)
    return arrays


def _hdf5_array(name: str, item: Any, path: Path) -> Array:
    import h5py

    if item.is_virtual or item.external:
        raise ValueError(f"{_short(name)} lies in another file; only arrays of the file itself are read")
    settings = item.id.get_create_plist()
    filters = {settings.get_filter(i)[0] for i in range(settings.get_nfilters())}
    if not filters <= _HDF5_FILTERS:
        raise ValueError(f"{_short(name)} is compressed with a plugin; write it with gzip or without")
    if item.shape is None:
        raise ValueError(f"{_short(name)} is empty")
    _check_unpacked(max(item.size, math.prod(item.chunks or ())) * max(1, item.dtype.itemsize), path)
    if h5py.check_string_dtype(item.dtype) is None or item.dtype.kind != "O":
        _check_kind(name, item.dtype, item.ndim)
        return np.asarray(item[()])
    # Text of any length: many rows may point to the same long one.
    if item.ndim != 1 or item.size > path.stat().st_size:
        raise ValueError(f"{_short(name)} is text of shape {list(item.shape)}; give one name for each image")
    return _words(_hdf5_words(path, name, item.size))


_READ_WORDS = """
import sys, json, h5py
path, name, step, longest = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with h5py.File(path, "r") as file:
    for start in range(0, len(file[name]), step):
        print(json.dumps([bytes(word)[:longest].decode() for word in file[name][start : start + step]]))
"""


def _hdf5_words(path: Path, name: str, count: int) -> list[Any]:
    """Text of any length, read by another process: on some damaged files the library never returns."""
    step = max(1, UNPACKED_BYTES // max(1, path.stat().st_size))
    words = [str(path), name, str(step), str(4 * MAX_LETTERS + 1)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _READ_WORDS, *words],
            capture_output=True,
            timeout=8 + count / 10_000,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        raise ValueError(f"{_short(name)} is damaged text") from None
    return [word for line in done.stdout.splitlines() for word in json.loads(line)]


def _lines(path: Path) -> Arrays:
    return {"": _column([line.strip() for line in text_lines(path) if line.strip()])}


def _json(path: Path) -> Arrays:
    value = read_json(path, max_bytes=2**28, max_values=2**24, follow=True)
    named = value if isinstance(value, dict) else {"": value}
    _check_count(len(named))
    return {name: _listed(name, rows) for name, rows in named.items()}


def _listed(name: str, rows: Any) -> Array:
    """A JSON list: of names, or of numbers in one, two or three axes."""
    if isinstance(rows, list) and rows and all(isinstance(word, str) for word in rows):
        return _words(rows)
    array = np.array(rows, dtype=None if _only_numbers(rows) else object)
    _check_kind(name, array.dtype, array.ndim)
    return array


def _only_numbers(rows: Any, depth: int = 4) -> bool:
    if isinstance(rows, list):
        return depth > 0 and all(_only_numbers(row, depth - 1) for row in rows)
    return isinstance(rows, (int, float))


def _column(words: list[str]) -> Array:
    """Whole numbers where all words are, else text."""
    if words and all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        return np.array(list(map(int, words)))
    return _words(words)


def _words(words: list[Any]) -> Array:
    """A column of text. The longest word decides how much memory every row takes, so it is bounded."""
    for word in words:
        if not isinstance(word, str) or len(word) > MAX_LETTERS or not _is_text(word):
            raise ValueError(f"{_short(word)} is not a name of at most {MAX_LETTERS} letters")
    return np.array(words, dtype=np.str_)


def _is_text(word: str) -> bool:
    """Half a pair of surrogates, which JSON can hold, is no letter."""
    return word.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in word)


def _check_kind(name: str, dtype: np.dtype[Any], ndim: int) -> None:
    if dtype.kind not in _KINDS or ndim > 4 or (dtype.kind in "SU" and dtype.itemsize > 4 * MAX_LETTERS):
        what = f"the array {_short(name)}" if name else "the array"
        raise ValueError(
            f"{what} is {_short(str(dtype))} with {ndim} axes; give numbers or text of at most"
            f" {MAX_LETTERS} letters, with at most 4 axes"
        )


def _check_count(count: int) -> None:
    if count > MAX_ARRAYS:
        raise ValueError(f"it has {count} arrays; at most {MAX_ARRAYS} are read")


def _check_unpacked(size: int, path: Path) -> None:
    limit = UNPACKED_BYTES + UNPACKED_TIMES * path.stat().st_size
    if size > limit:
        raise ValueError(f"unpacked it would take {size} bytes, more than the {limit} a file of its size may")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _reason(error: Exception) -> str:
    """The library's reason in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


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
