"""What an exported ONNX file says of itself; read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wdae.classifier.names import shorten
from wdae.errors import MissingExtraError, StorageError, listed
from wdae.printing import say, size_text
from wdae.storage.files import read_bytes
from wdae.storage.records import parse

MODEL = "model"
"""Among a file's metadata: the model's folder, to be taught on."""
MOST_BYTES = 2**31 - 1


def read_export(path: str | Path) -> tuple[Any, dict[str, str]]:
    """An exported file and what it says of itself."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", "reading an ONNX file") from error
    try:
        proto = onnx.load_from_string(read_bytes(path, MOST_BYTES))
    except StorageError:
        raise
    except Exception as error:  # protobuf's own
        raise StorageError(f"{path} is not an ONNX file, or is truncated; export the model again") from error
    known = {one.key: one.value for one in proto.metadata_props}
    if not known.get("format", "").startswith("wdae-export"):
        raise StorageError(
            f"{path} is an ONNX file, but no export of wdae; make one with: wdae export MODEL --to onnx"
        )
    return proto, known


def facts_of(path: str | Path) -> dict[str, Any]:
    """What an exported file says of itself, as JSON values."""
    proto, known = read_export(path)
    texts = {key: value for key, value in known.items() if key not in ("format", MODEL)}
    facts = {key: _json(value, path) for key, value in texts.items()}
    shapes = {
        kind: {
            one.name: [side.dim_param or side.dim_value for side in one.type.tensor_type.shape.dim]
            for one in values
        }
        for kind, values in (("inputs", proto.graph.input), ("outputs", proto.graph.output))
    }
    backbone = facts.get("backbone")
    foreign = isinstance(backbone, dict) and ":" in str(backbone.get("name"))  # in the graph alone
    can = {"can_be_taught": MODEL in known and not foreign, "bytes": Path(path).stat().st_size}
    return {"path": str(path), "format": known["format"], **facts, **shapes, **can}


def _json(text: str, path: str | Path) -> Any:
    try:
        return parse(text.encode(), path)
    except StorageError:
        return text


def print_facts(facts: dict[str, Any]) -> None:
    """Print them, a line each."""
    names = [shorten(str(name)) for name in facts.get("labels", [])]
    seen = facts.get("preprocessing")
    lines = {
        "export": f"{facts['path']}, {size_text(facts['bytes'])}, {facts['format']}",
        "classes": f"{len(names)}: {listed(names, 200)}",
        "backbone": facts.get("backbone", {}).get("name")
        if isinstance(facts.get("backbone"), dict)
        else None,
        "pictures": seen,
        "unknown": facts["unknown"].get("in_words") if isinstance(facts.get("unknown"), dict) else None,
        "precision": facts.get("precision"),
        "opset": facts.get("opset"),
        "takes": facts["inputs"],
        "gives": facts["outputs"],
        "can be taught on": "yes: wdae learn --from" if facts["can_be_taught"] else "no",
    }
    for key, value in lines.items():
        if value is not None:
            say(f"{key}: {value}")
