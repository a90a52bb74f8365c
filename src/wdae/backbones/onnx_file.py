"""Any exported embedder: an ONNX file as a backbone, run by onnxruntime.

How it wants its pictures stands in a JSON file beside it (``embedder.onnx.json`` for ``embedder.onnx``), in
the file's own metadata as exports of wdae have it, or on the command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wdae.backbones.base import Backbone
from wdae.backbones.preprocessing import PREPROCESSING, Preprocessing
from wdae.errors import MissingExtraError, RecipeError
from wdae.storage.files import read_bytes
from wdae.storage.records import parse, read_json

KIND = "onnx:"
_MOST_BYTES = 2**31 - 1  # of an ONNX file, by its format
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_PREFERRED = ("features", "embedding", "embeddings", "image_embeds", "pooler_output")


class OnnxNetwork(nn.Module):
    """A graph of ONNX as a module: pictures ``[B, 3, S, S]`` to the output ``[B, D]`` or ``[B, D, S', S']``.

    The file's bytes are its only weights, so that it is saved and read like those of any backbone. Sessions
    are started when they are needed, one for each kind of device.

    Args:
        content: uint8, the bytes of the file.
        output: name of the output; by default the one that is called as embeddings usually are, or else the
            first with two or four dimensions.
    """

    content: Tensor

    def __init__(self, content: Tensor, output: str | None = None) -> None:
        super().__init__()
        self.content = nn.Buffer(content)
        self.output = output
        self._sessions: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without sessions, which cannot be copied."""
        return self.__dict__ | {"_sessions": {}}

    def session(self, device: str = "cpu") -> Any:
        """The running graph on a kind of device."""
        if device not in self._sessions:
            self._sessions[device] = _start(self.content.cpu().numpy().tobytes(), device)
        return self._sessions[device]

    def forward(self, images: Tensor) -> Tensor:
        """Features of a batch, in pieces where the graph was exported for a fixed number of pictures."""
        session = self.session(images.device.type)
        given = session.get_inputs()[0]
        array = images.detach().cpu().numpy().astype(_NUMBERS[given.type])
        if given.shape[1] != 3 and given.shape[-1] == 3:
            array = array.transpose(0, 2, 3, 1)
        array, wanted = np.ascontiguousarray(array), self.chosen(session)
        fixed = given.shape[0] if isinstance(given.shape[0], int) else len(array)
        found = []
        for start in range(0, len(array), max(1, fixed)):
            piece = array[start : start + fixed]
            short = fixed - len(piece)
            full = piece if not short else np.concatenate([piece, piece[:1].repeat(short, axis=0)])
            found.append(session.run([wanted], {given.name: full})[0][: len(piece)])
        return torch.from_numpy(np.concatenate(found)).float().to(images.device)

    def chosen(self, session: Any) -> str:
        """The output that features are taken from."""
        shapes = {one.name: len(one.shape) for one in session.get_outputs()}
        if self.output is not None and self.output not in shapes:
            raise RecipeError(f"the graph has no output {self.output!r}; it has: {', '.join(shapes)}")
        usable = [name for name, dims in shapes.items() if dims in (2, 4)]
        if self.output is None and not usable:
            raise RecipeError(
                f"no output of the graph is one vector a picture; they are: {', '.join(shapes)}"
            )
        known = [name for name in _PREFERRED if name in usable]
        return self.output or (known or usable)[0]


_NUMBERS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def _start(content: bytes, device: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx", "a backbone in an ONNX file") from error
    provider = _PROVIDERS.get(device)
    if provider not in onnxruntime.get_available_providers():
        raise RecipeError(
            f"onnxruntime cannot compute on {device} here; give --device cpu, or install onnxruntime-gpu"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=[provider])
    except Exception as error:  # onnxruntime has a class of error for each kind of fault
        raise RecipeError(f"onnxruntime cannot open the graph: {str(error)[:300]}") from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _NUMBERS:
        shown = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
        raise RecipeError(
            f"the graph must take one batch of pictures [B, 3, S, S] of numbers, it takes: {shown}"
        )
    return session


def from_onnx(path: str, output: str | None = None, **seen: Any) -> tuple[OnnxNetwork, Preprocessing]:
    """The network in an ONNX file, and how it wants its pictures.

    Args:
        path: of the file.
        output: the name of the graph's output.
        seen: fields of :class:`Preprocessing`; what is not given is looked up beside the file and in it.
    """
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"backbone {KIND}{path}: there is no such file")
    beside = Path(f"{path}.json")
    stated = dict(read_json(beside, follow=True)) if beside.is_file() else {}
    network = OnnxNetwork(_whole(file), output or stated.pop("output", None))
    session = network.session()
    kept = session.get_modelmeta().custom_metadata_map.get(PREPROCESSING)
    stated = (parse(kept.encode(), path) if kept is not None else {}) | stated
    stated |= {key: value for key, value in seen.items() if value is not None}
    if unknown := sorted(set(stated) - set(Preprocessing.model_fields)):
        known = ", ".join(("output", *Preprocessing.model_fields))
        raise RecipeError(f"backbone {KIND}{path}: unknown {', '.join(unknown)}; accepted: {known}")
    sides = [side for side in session.get_inputs()[0].shape[1:] if isinstance(side, int) and side > 3]
    stated.setdefault("image_size", sides[0] if sides else None)
    if missing := [key for key in ("image_size", "mean", "std") if stated.get(key) is None]:
        raise RecipeError(
            f"{path} does not say how it wants its pictures ({', '.join(missing)}). Say it with --side,"
            f" --mean and --std, or in a file {beside}:"
            ' {"image_size": 224, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}'
        )
    return network, Preprocessing.of(stated, path)


def of_size(shapes: Mapping[str, Sequence[int]], options: Mapping[str, Any]) -> Backbone:
    """A backbone for bytes that a file has kept, not yet with the bytes.

    Args:
        shapes: of the file's tensors.
        options: ``feature_dim``, ``image_size`` and ``output``.
    """
    size = next((math.prod(shape) for key, shape in shapes.items() if key.endswith(".content")), 0)
    network = OnnxNetwork(torch.zeros(size, dtype=torch.uint8), options.get("output"))
    return Backbone([network], int(options["feature_dim"]), int(options["image_size"]))


def _whole(file: Path) -> Tensor:
    """The bytes of a file; weights that lie in files beside it are brought in where onnx is installed."""
    content = read_bytes(file, _MOST_BYTES)
    try:
        _start(content, "cpu")
    except RecipeError as error:
        try:
            import onnx

            content = onnx.load(str(file)).SerializeToString()
        except Exception:  # what onnxruntime said of the file itself tells more
            raise error from None
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
