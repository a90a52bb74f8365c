"""Backbones run by onnxruntime, without torch: graphs that ship, with the weights of a model.

A file of a stranger brings weights alone; which graph they are put into is ours to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdae.backbones.preprocessing import Preprocessing
from wdae.config.shipped import ASSETS
from wdae.data.decode import MAX_BYTES, Pixels, decode
from wdae.errors import DataError, ModelError, StorageError
from wdae.runtime.process import available_cores
from wdae.storage.files import read_bytes

GRAPHS = ASSETS / "graphs"
IMAGES, FEATURES = "images", "features"
"""Names of a graph's input and output."""
OPSET = 17
CONSTANTS = {"zero": 0.0, "six": 6.0}
"""Numbers that a graph may name, beside the network's tensors."""
SHIPPED = {
    "conv4-64": "conv4-64",
    "conv4-512": "conv4-512",
    "efficientnet-lite0": "efficientnet-lite0",
    "resnet10": "resnet10",
    "resnet12": "resnet12",
    "resnet12-512": "resnet12",  # of other widths alone
    "wrn-28-10": "wrn-28-10",
}
"""Backbones of our registry, and the graphs that ship for them."""

_FREE = {"image_size", "dropout", "widths"}  # options that change no graph

_BATCH = 8  # pictures of a piece of work; few of them stay in the cache
_AT_ONCE = 224**2 * _BATCH  # pixels

Array = npt.NDArray[Any]


class Piece(NamedTuple):
    """Some pictures: their numbers, features ``[B, D]``, and reasons why others could not be read."""

    rows: list[int]
    features: Array
    unreadable: dict[int, str]


@dataclass(frozen=True, eq=False)
class GraphBackbone:
    """A backbone as a running graph.

    Args:
        session: of onnxruntime, on one thread: pictures are spread over threads, not their layers.
        rule: how it wants its pictures.
    """

    session: Any
    rule: Preprocessing
    threads: int = field(default_factory=available_cores)

    def features(self, batch: npt.NDArray[np.uint8]) -> Array:
        """Features ``[B, D]`` of pictures uint8 ``[B, S, S, 3]`` that :attr:`rule` has made."""
        found = self.session.run(None, {self.session.get_inputs()[0].name: self.rule.prepared(batch)})[0]
        return np.asarray(found, dtype=np.float32)

    def embed(self, files: Iterable[str | Path]) -> Iterator[Piece]:
        """Features of picture files, in their order, as they are done."""
        size = max(1, min(_BATCH, _AT_ONCE // self.rule.image_size**2))
        numbered = enumerate(map(str, files))
        pieces = iter(lambda: list(islice(numbered, size)), [])
        yield from in_threads(self._piece, pieces, self.threads)

    def _piece(self, files: list[tuple[int, str]]) -> Piece:
        pictures: dict[int, Pixels] = {}
        unreadable: dict[int, str] = {}
        for row, file in files:
            try:
                pictures[row] = self.rule(decode(read_bytes(file, MAX_BYTES), self.rule.at_least))
            except (DataError, StorageError) as error:
                unreadable[row] = str(error) if str(error).startswith(file) else f"{file}: {error}"
        if not pictures:
            return Piece([], np.zeros((0, 0), np.float32), unreadable)
        return Piece(list(pictures), self.features(np.stack(list(pictures.values()))), unreadable)


def in_threads(work: Callable[[Any], Any], items: Iterator[Any], threads: int) -> Iterator[Any]:
    """``map(work, items)``, a few items ahead of what is asked for, in threads."""
    first = list(islice(items, 1))
    if threads <= 1 or not (more := list(islice(items, 1))):
        yield from map(work, first)
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads)
    ahead: list[Future[Any]] = [pool.submit(work, item) for item in (*first, *more)]
    try:
        while ahead:
            ahead += [pool.submit(work, item) for item in islice(items, 2 * threads - len(ahead))]
            yield ahead.pop(0).result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def has_runtime() -> bool:
    """Whether onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


def graph_of(name: str, options: Mapping[str, Any]) -> bytes | None:
    """The graph of a backbone of our registry, without weights; None where none ships."""
    if name not in SHIPPED or not set(options) <= _FREE:
        return None
    return (GRAPHS / f"{SHIPPED[name]}.onnx").read_bytes()


def start(
    name: str, options: Mapping[str, Any], weights: Mapping[str, Array], rule: Preprocessing
) -> GraphBackbone | None:
    """A backbone of our registry with these weights, running; None where no graph of it ships."""
    graph = graph_of(name, options)
    if graph is None:
        return None
    own = {key: value for key, value in weights.items() if not key.endswith("num_batches_tracked")}
    constants = {key: np.asarray(value) for key, value in CONSTANTS.items()}
    return GraphBackbone(session(graph + initializers(own | constants)), rule)


def session(graph: bytes) -> Any:
    """onnxruntime on a graph, on one thread of the CPU."""
    import onnxruntime

    asked = onnxruntime.SessionOptions()
    asked.log_severity_level = 3
    asked.intra_op_num_threads = asked.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(graph, asked, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of error for each kind of fault
        raise ModelError(f"onnxruntime cannot start the backbone: {str(error)[:300]}") from error


def initializers(weights: Mapping[str, Array]) -> bytes:
    """Weights as a piece of an ONNX file: appended to one, they are part of its graph.

    A file of the format is one message, and of a message that is given in pieces the pieces are joined
    (https://protobuf.dev/programming-guides/encoding/#last-one-wins). The numbers are those of onnx.proto.
    """
    tensors = []
    for name, value in weights.items():
        array = np.asarray(value, dtype=np.float32, order="C")
        fields = b"".join(_number(1, side) for side in array.shape) + _number(2, 1)  # dims, type float
        tensors.append(_field(5, fields + _field(8, name.encode()) + _field(9, array.tobytes())))
    return _field(7, b"".join(tensors))  # the model's graph


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
