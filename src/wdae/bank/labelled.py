"""From arrays with all sorts of names and shapes to features with the name of each image's class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wdae.bank.arrays import Array, Arrays, read_arrays
from wdae.bank.encoding import decode
from wdae.errors import BankError, listed
from wdae.parts import Part

FEATURES = ("features", "all_features", "embeddings", "feats", "x", "data")
LABELS = ("labels", "all_labels", "y", "targets", "label")
NAMES = ("class_names", "classes", "names")
PARTS = ("parts", "part", "split")
SCALES = ("scales", "feature_scale")
WEIGHTS = ("base_weights", "weights", "weight")
COSINE_SCALE = ("cosine_scale", "scale_cls")


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """Features of one file with their classes.

    ``labels`` are positions in ``names``; ``parts`` are codes of :class:`Part`, where the file has them.
    """

    features: Tensor
    scales: Tensor | None
    labels: Array
    names: list[str]
    parts: Array | None
    base_weights: Array | None
    cosine_scale: float | None


def read_labelled(
    path: str | Path, labels: str | Path | None = None, names: str | Path | None = None
) -> LabelledFeatures:
    """Read a file of features; ``labels`` and ``names`` are files of their own where it lacks them.

    Features are [images, D], or [classes, images, D], whose labels go without saying. Labels are class names
    or whole numbers, positions in the list of names if there is one.
    """
    arrays = read_arrays(path)
    features = find_features(arrays, path, ndims=(2, 3))
    given = read_column(labels) if labels is not None else find(arrays, LABELS, path)
    name_column = read_column(names) if names is not None else find(arrays, NAMES, path)
    column, shape = _flat_labels(given, features.shape, path), features.shape
    scales = find(arrays, SCALES, path)
    parts = find(arrays, PARTS, path)
    flat = features.reshape(-1, shape[-1])
    if (count := arrays.get("count")) is not None:  # the paper's authors write into arrays that are too long
        n = int(_number(count, path, "count"))
        if not 0 < n <= len(flat):
            raise BankError(f"{path}: count is {n}, but there are {len(flat)} features")
        flat, column = flat[:n], column[:n]
    if len(column) != len(flat):
        raise BankError(f"{path}: there are {len(column)} labels for {len(flat)} features; give one for each")
    positions, class_names = _classes(column, name_column, path)
    if not 0 <= int(positions.min()) <= int(positions.max()) < len(class_names):
        raise BankError(
            f"{path}: labels run from {positions.min()} to {positions.max()}; for {len(class_names)} class"
            f" names they must lie in 0 … {len(class_names) - 1}"
        )
    stored, stored_scales = _stored(flat, scales, path)
    cosine = find(arrays, COSINE_SCALE, path)
    return LabelledFeatures(
        stored,
        stored_scales,
        positions,
        class_names,
        None if parts is None else _part_codes(parts.reshape(-1), path),
        find(arrays, WEIGHTS[:1], path),  # plain "weights" beside features may mean anything
        None if cosine is None else _number(cosine, path, "the cosine scale"),
    )


def find_features(arrays: Arrays, path: str | Path, ndims: tuple[int, ...]) -> Array:
    """The array of features, with as many axes as ``ndims`` allows and at least one number."""
    features = find(arrays, FEATURES, path, "features", ndims)
    if features is None:
        raise BankError(
            f"{path} has no array of features; it has {_listing(arrays)};"
            f" accepted names: {', '.join(FEATURES)}"
        )
    if features.ndim not in ndims or not features.size:
        accepted = " or ".join("[images, D]" if n == 2 else "[classes, images, D]" for n in ndims)
        raise BankError(f"{path}: features have shape {list(features.shape)}; give {accepted}")
    if features.dtype.kind not in "iuf":
        raise BankError(f"{path}: features are {features.dtype}; give numbers")
    return features


def find(
    arrays: Arrays, known: tuple[str, ...], path: str | Path, what: str = "", ndims: tuple[int, ...] = ()
) -> Array | None:
    """The array under the first of the known names; with ``ndims``, else the only one with so many axes."""
    lower = {name.lower(): array for name, array in arrays.items()}
    for name in known:
        if name in lower:
            return lower[name]
    shaped = [array for array in arrays.values() if array.ndim in ndims]
    if len(shaped) > 1:
        raise BankError(
            f"{path}: which array are the {what}? It has {_listing(arrays)}; call it {known[0]!r}"
        )
    return shaped[0] if shaped else None


def read_column(path: str | Path) -> Array:
    """A file with one column: labels or names (.txt one a line, .npy, .json list, or a named array)."""
    arrays = read_arrays(path)
    column = arrays.get("", find(arrays, (*LABELS, *NAMES), path))
    if column is None and len(arrays) == 1:
        column = next(iter(arrays.values()))
    if column is None:
        raise BankError(f"{path} has no column of labels or names; it has {_listing(arrays)}")
    return np.asarray(column)


def read_weights(path: str | Path) -> tuple[Array, float | None]:
    """Base weights [classes, D] and, where the file has it, the cosine scale."""
    arrays = read_arrays(path)
    weights = find(arrays, WEIGHTS, path, "base weights", ndims=(2,))
    if weights is None:
        raise BankError(f"{path} has no base weights of shape [classes, D]; it has {_listing(arrays)}")
    cosine = find(arrays, COSINE_SCALE, path)
    return weights, None if cosine is None else _number(cosine, path, "the cosine scale")


def _flat_labels(labels: Array | None, shape: tuple[int, ...], path: str | Path) -> Array:
    """One label an image. [classes, images, D] features have one a class, one an image, or none given."""
    if len(shape) == 3:
        n_classes, n_images, _ = shape
        column = np.arange(n_classes) if labels is None else labels
        return np.repeat(column, n_images) if column.shape == (n_classes,) else column.reshape(-1)
    if labels is None:
        raise BankError(f"{path} has no labels; give them with --labels, or as an array called {LABELS[0]!r}")
    return labels.reshape(-1)


def _classes(column: Array, names: Array | None, path: str | Path) -> tuple[Array, list[str]]:
    """Labels as positions in a list of class names, and that list."""
    if column.dtype.kind == "f" and (column == np.round(column)).all() and (abs(column) < 2**62).all():
        column = column.astype(np.int64)  # some tools write all numbers as floats
    known = None if names is None else list(map(str, _strings(names.reshape(-1), path)))
    if np.issubdtype(column.dtype, np.integer):
        if known is not None:
            return column.astype(np.int64), known
        values, positions = np.unique(column, return_inverse=True)
        if len(values) and values[0] < 0:
            raise BankError(f"{path}: labels must be 0 or more; the smallest is {values[0]}")
        return positions.astype(np.int64), [str(value) for value in values]
    words = _strings(column, path)
    if not np.issubdtype(words.dtype, np.str_):
        raise BankError(f"{path}: labels are {column.dtype}; give class names or whole numbers")
    values, positions = np.unique(words, return_inverse=True)
    if known is None:
        return positions.astype(np.int64), [str(value) for value in values]
    place = {name: i for i, name in enumerate(known)}
    unknown = [str(value) for value in values if str(value) not in place]
    if unknown:
        raise BankError(
            f"{path}: {len(unknown)} labels are not among the class names, the first {unknown[0]!r}"
        )
    return np.array([place[str(value)] for value in values], dtype=np.int64)[positions], known


def _stored(features: Array, scales: Array | None, path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Features as a bank keeps them: int8 with scales stays so, all else becomes floating point."""
    column = None
    if scales is not None:
        if scales.dtype.kind not in "iuf" or scales.size not in (1, len(features)):
            raise BankError(
                f"{path}: scales are {scales.dtype} {list(scales.shape)}; give one number for each vector"
            )
        column = torch.from_numpy(np.array(scales, dtype=np.float32).reshape(-1))
        column = column.expand(len(features)).contiguous()
    if features.dtype == np.int8 and column is not None:
        return torch.from_numpy(np.array(features)), column
    if features.dtype == np.float16 and column is None:
        return torch.from_numpy(np.array(features)), None
    with np.errstate(over="ignore"):  # what becomes infinite is named by the bank's check
        values = torch.from_numpy(np.array(features, dtype=np.float32))
    return decode(values, column), None


def _part_codes(parts: Array, path: str | Path) -> Array:
    parts = _strings(parts, path)
    if np.issubdtype(parts.dtype, np.str_):
        values, positions = np.unique(parts, return_inverse=True)
        return np.array([Part.parse(str(value)).code for value in values], dtype=np.int64)[positions]
    if parts.dtype.kind not in "iuf" or not np.isin(parts, range(len(Part))).all():
        known = ", ".join(f"{part.code} ({part.value})" for part in Part)
        raise BankError(f"{path}: parts are names or codes; accepted: {known}")
    return parts.astype(np.int64)


def _number(array: Array, path: str | Path, what: str) -> float:
    """The first number of an array, where there is one."""
    if array.dtype.kind not in "iuf" or not array.size or not np.isfinite(first := array.reshape(-1)[0]):
        raise BankError(f"{path}: {what} is {array.dtype} {list(array.shape)}; give one finite number")
    return float(first)


def _strings(column: Array, path: str | Path) -> Array:
    """HDF5 gives names as bytes."""
    if column.dtype.kind != "S":
        return column
    try:
        return np.array([bytes(value).decode() for value in column], dtype=np.str_)
    except UnicodeDecodeError as error:
        raise BankError(f"{path}: names are not UTF-8: {error}") from None


def _listing(arrays: Arrays) -> str:
    shown = [f"{name or 'one array'} {list(array.shape)}" for name, array in arrays.items()]
    return listed(shown, 20) or "nothing"
