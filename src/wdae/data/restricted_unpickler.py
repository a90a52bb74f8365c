"""A pickle is a program; this reader runs only those that build arrays and plain containers.

Benchmarks are handed around as pickles, so they have to be read, from strangers. Every name a pickle asks for
is looked up in the short table below; each entry is a function of ours that checks what it is given, never
numpy's own, because numpy's can be talked into reading memory that is not theirs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.errors import DataError


def load_pickle(path: Path) -> Any:
    """The arrays, numbers, texts, lists, tuples, sets and dictionaries in a pickle, of Python 2 too.

    Raises:
        DataError: the pickle asks for anything else (which is named and not run), or is damaged.
    """
    try:
        with path.open("rb") as file:
            # latin1: Python 2 wrote arrays' bytes as text, and this reads them back unchanged.
            return _Unpickler(file, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise DataError(f"{path}: is damaged, or needs more memory than there is") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path}: is not a whole pickle of arrays and containers: {error}") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = _OLD_NAMES.get(module, module)
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise DataError(
                f"the pickle asks for {module}.{name}, which was not run; only arrays and plain containers"
                " are accepted. Do not open this file with anything else"
            )
        return allowed


class _Dtype:
    """Stands for numpy.dtype while unpickling: a plain number, text or object type, and a byte order."""

    def __init__(self, code: str, *_flags: object) -> None:
        dtype = np.dtype(str(code))
        if dtype.kind not in "biufcSUO" or dtype.fields is not None or dtype.subdtype is not None:
            raise DataError(f"an array of {code!r} is neither numbers nor text")
        self.dtype: np.dtype[Any] = dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # (version, byte order, sub-array, field names, fields, size, alignment, flags ...)
        if any(part is not None for part in state[2:5]):
            raise DataError("an array with fields is neither numbers nor text")
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """An array under construction: takes its state only in the plain form, checked."""

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, by_columns, data = state
        if not isinstance(kind, _Dtype) or not isinstance(
            data, list if kind.dtype.hasobject else (bytes, str)
        ):
            raise DataError("an array's type and data do not fit each other")
        raw = data.encode("latin1") if isinstance(data, str) else data
        checked: Any = (1, tuple(int(n) for n in shape), kind.dtype, bool(by_columns), raw)
        super().__setstate__(checked)


class _ArrayName:
    """Stands for numpy.ndarray, which pickles name but need not call."""


def _reconstruct(_kind: object, _shape: object, _code: object) -> _Array:
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _from_buffer(data: Any, kind: _Dtype, shape: Any, order: Any) -> npt.NDArray[Any]:
    if kind.dtype.hasobject:
        raise DataError("an array of objects cannot come from raw bytes")
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype=kind.dtype)
    return flat.reshape(tuple(int(n) for n in shape), order="F" if order == "F" else "C")


def _scalar(kind: _Dtype, data: Any = b"") -> Any:
    if kind.dtype.hasobject:
        raise DataError("a single object is not a number")
    raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(raw, dtype=kind.dtype, count=1)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Python 3 writes bytes as text to encode when asked for the pickles of Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise DataError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """How the old protocols write empty bytes; with arguments it would fill the memory on demand."""
    return b""


_OLD_NAMES = {
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}

_ALLOWED: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy", "ndarray"): _ArrayName,
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "bytes"): _no_bytes,
    ("collections", "OrderedDict"): dict,
}
