"""A pickle is a program; this reader runs only those that build arrays and plain containers.

Benchmarks are handed around as pickles, so they have to be read, from strangers. Every name a pickle asks for
is looked up in the short table below; each entry is a function of ours that checks what it is given, never
numpy's own. How many instructions may run, and how many bytes they may make, depends on the file's size.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from wdae.errors import DataError, StorageError
from wdae.storage.files import open_regular

_INSTRUCTIONS = 2_000_000  # and one more for every 64 bytes: an array takes some 20, and far more bytes
_BYTES = 2**26  # and twice the file's size


def load_pickle(path: Path) -> Any:
    """The arrays, numbers, texts, lists, tuples, sets and dictionaries in a pickle, of Python 2 too.

    Raises:
        DataError: the pickle asks for anything else (which is named and not run), or is damaged.
    """
    try:
        with open_regular(path) as file:
            return _Unpickler(file, os.fstat(file.fileno()).st_size).load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except StorageError as error:
        raise DataError(str(error)) from error
    except MemoryError as error:
        raise DataError(f"{path}: is damaged, or needs more memory than there is") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(f"{path}: is not a whole pickle of arrays and containers ({reason})") from error


_Written: Any = pickle._Unpickler


class _Unpickler(_Written):
    """Python's unpickler, the one written in Python: its instructions can be counted and overridden."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        # latin1: Python 2 wrote arrays' bytes as text, and this reads them back unchanged.
        super().__init__(_Bounded(file, size), encoding="latin1")
        self.budget = _BYTES + 2 * size
        ours = {code: getattr(type(self), load.__name__) for code, load in super().dispatch.items()}
        self.dispatch = _Counted(ours, _INSTRUCTIONS + size // 64)
        self.allowed = _allowed(self.spend)

    def spend(self, size: int) -> None:
        """Count bytes that an instruction makes; a few letters of a pickle could ask for any number."""
        self.budget -= size
        if self.budget < 0:
            raise DataError("the pickle asks for far more memory than its size explains")

    def find_class(self, module: str, name: str) -> Any:
        module = _OLD_NAMES.get(module, module)
        if (module, name) not in self.allowed:
            raise DataError(
                f"the pickle asks for {module[:80]}.{name[:80]}, which was not run; only arrays and plain"
                " containers are accepted. Do not open this file with anything else"
            )
        return self.allowed[module, name]

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Array, _Dtype)):
            raise DataError("the pickle changes something that is not an array")
        self.stack[-1].__setstate__(state)

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        if not any(self.stack[-1] is known for known in self.allowed.values()):
            raise DataError("the pickle calls something that is not one of the accepted functions")
        self.stack[-1] = self.stack[-1](*arguments)

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    def _refused(self) -> None:
        raise DataError("the pickle makes an object in a way that arrays and containers do not need")

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        _check_keys(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        _check_keys(self.stack)
        super().load_frozenset()

    load_newobj = load_newobj_ex = load_obj = load_inst = load_persid = load_binpersid = _refused
    load_ext1 = load_ext2 = load_ext4 = load_next_buffer = _refused


class _Counted(dict[int, Callable[[Any], None]]):
    """The table of instructions, which ends the reading after so many of them."""

    def __init__(self, table: dict[int, Callable[[Any], None]], limit: int) -> None:
        super().__init__(table)
        self.left = limit

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise DataError("the pickle has far more instructions than its size explains")
        return super().__getitem__(code)


class _Bounded:
    """A file that is never asked for more than it has: a length in a pickle may say anything."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left = file, size

    def read(self, size: int) -> bytes:
        if size > self.left:
            raise EOFError("the file ends early")
        self.left -= size
        return self.file.read(size)

    def readline(self) -> bytes:
        line = self.file.readline()
        self.left -= len(line)
        return line


class _Dtype:
    """Stands for numpy.dtype while unpickling: a plain number, text or object type, and a byte order."""

    def __init__(self, code: str, *_flags: object) -> None:
        dtype = np.dtype(str(code))
        if dtype.kind not in "biufcSUO" or dtype.fields is not None or dtype.subdtype is not None:
            raise DataError(f"an array of {str(code)[:40]!r} is neither numbers nor text")
        self.dtype: np.dtype[Any] = dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        # (version, byte order, sub-array, field names, fields, size, alignment, flags ...)
        if any(part is not None for part in state[2:5]):
            raise DataError("an array with fields is neither numbers nor text")
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """An array under construction: takes its state only in the plain form, checked."""

    spend: Callable[[int], None]

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, by_columns, data = state
        if not isinstance(kind, _Dtype) or not isinstance(
            data, list if kind.dtype.hasobject else (bytes, str)
        ):
            raise DataError("an array's type and data do not fit each other")
        self.spend(len(data))
        raw = data.encode("latin1") if isinstance(data, str) else data
        checked: Any = (1, tuple(int(n) for n in shape), kind.dtype, bool(by_columns), raw)
        super().__setstate__(checked)


class _ArrayName:
    """Stands for numpy.ndarray, which pickles name but need not call."""


def _allowed(spend: Callable[[int], None]) -> dict[tuple[str, str], Any]:
    """What a pickle may ask for. Whatever copies its argument counts the bytes first."""

    def reconstruct(_kind: object, _shape: object, _code: object) -> _Array:
        array = np.ndarray.__new__(_Array, (0,), np.uint8)
        array.spend = spend
        return array

    def encode(text: str, encoding: str = "latin1") -> bytes:
        """Python 3 writes bytes as text to encode when asked for the pickles of Python 2."""
        if encoding not in ("latin1", "latin-1"):
            raise DataError(f"bytes encoded as {str(encoding)[:40]!r}")
        spend(len(text))
        return text.encode("latin1")

    def container(kind: Callable[[Any], Any]) -> Callable[..., Any]:
        def make(items: Any = ()) -> Any:
            if not isinstance(items, (list, tuple)):
                raise DataError("a container is made of something else than a list")
            spend(64 * len(items))
            if kind is not list:
                _check_keys([key for key, _ in items] if kind is dict else items)
            return kind(items)

        return make

    def no_bytes() -> bytes:
        """How the old protocols write empty bytes; with arguments it would fill the memory on demand."""
        return b""

    return {
        ("numpy", "ndarray"): _ArrayName,
        ("numpy", "dtype"): _Dtype,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "scalar"): _scalar,
        ("numpy._core.numeric", "_frombuffer"): _from_buffer,
        ("_codecs", "encode"): encode,
        ("builtins", "set"): container(set),
        ("builtins", "frozenset"): container(frozenset),
        ("builtins", "list"): container(list),
        ("builtins", "dict"): container(dict),
        ("builtins", "bytes"): no_bytes,
        ("collections", "OrderedDict"): container(dict),
    }


def _check_keys(keys: Iterable[Any]) -> None:
    """Keys are plain: hashing a tuple of tuples of tuples, a million deep, would end the process."""
    for key in keys:
        flat = key if isinstance(key, tuple) else (key,)
        if not all(part is None or isinstance(part, (str, bytes, int, float, np.generic)) for part in flat):
            raise DataError("a key or member of a set is neither text nor a number")


def _from_buffer(data: Any, kind: _Dtype, shape: Any, order: Any) -> npt.NDArray[Any]:
    if kind.dtype.hasobject:
        raise DataError("an array of objects cannot come from raw bytes")
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype=kind.dtype)
    return flat.reshape(tuple(int(n) for n in shape), order="F" if order == "F" else "C")


def _scalar(kind: _Dtype, data: Any = b"") -> Any:
    if kind.dtype.hasobject or kind.dtype.itemsize > 4096:
        raise DataError("a single object is not a number")
    raw = (data if isinstance(data, bytes) else data[:4096].encode("latin1"))[: kind.dtype.itemsize]
    return np.frombuffer(raw, dtype=kind.dtype, count=1)[0]


_OLD_NAMES = {
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
