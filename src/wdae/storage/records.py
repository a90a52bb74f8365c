"""JSON from disk: bounded, strict, and validated as a pydantic model before anything of it is used."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from wdae.errors import StorageError
from wdae.storage.files import read_bytes, write_text

MAX_BYTES = 32 * 2**20
MAX_VALUES = 500_000
MAX_DEPTH = 32
MAX_CLASSES = 100_000
MAX_ROWS = 2**40
_SHOWN = 10  # faults that a message lists

Text = Annotated[str, Field(max_length=10_000)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=1, le=2**24)]
"""A dimension: features, sides, layers."""
Count = Annotated[int, Field(ge=0, le=MAX_ROWS)]
Info = Annotated[dict[str, Any], Field(max_length=10_000)]
"""Provenance: any JSON, never interpreted."""
ClassNames = Annotated[
    tuple[Annotated[str, Field(max_length=1_000)], ...],
    FailFast(),
    Field(max_length=MAX_CLASSES),
]


class Record(BaseModel):
    """A JSON object on disk: strict types, no unknown keys, finite numbers.

    >>> class Point(Record):
    ...     x: int
    >>> validate(Point, b'{"x": 1}', "point.json").x
    1
    >>> validate(Point, b'{"x": "1", "y": 2}', "point.json")
    Traceback (most recent call last):
    ...
    wdae.errors.StorageError: point.json is altered: 'x' must be a valid integer, got '1'; unknown key 'y'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


R = TypeVar("R", bound=BaseModel)


def parse(data: bytes, name: str | Path, *, nan: bool = False, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON text. Too long, too deep, a key given twice, half of a surrogate pair or (without
    ``nan``) NaN is refused.

    >>> parse(b'{"a": 1, "a": 2}', "x.json")
    Traceback (most recent call last):
    ...
    wdae.errors.StorageError: x.json is truncated or altered: not valid JSON (key 'a' is given twice)
    """
    if data.count(b",") > max_values:
        raise StorageError(f"{name} holds more than {max_values} values; more are not read")
    try:
        constant = float if nan else _no_constant
        value = json.loads(
            data, object_pairs_hook=_unique, parse_constant=constant, parse_float=_finite_number
        )
        if b"\\ud" in data.lower():  # half of a surrogate pair is text that nothing can write or print
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise StorageError(f"{name} is truncated or altered: not valid JSON ({error})") from error
    if _depth(data) > MAX_DEPTH:
        raise _too_deep(name)
    return value


def validate(kind: type[R], data: bytes, name: str | Path) -> R:
    """The record in a JSON text, or one error that lists every fault."""
    parse(data, name)
    return construct(kind, data, name)


def construct(kind: type[R], data: bytes | str, name: str | Path) -> R:
    """The record in a JSON text that :func:`parse` has accepted, or that was made here."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise StorageError(f"{name} is altered: {'; '.join(faults(error))}") from None


def read_record(kind: type[R], path: str | Path) -> R:
    """The record in the JSON file ``path``."""
    return validate(kind, read_bytes(path, MAX_BYTES, follow=False), path)


def read_json(
    path: str | Path, *, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES, follow: bool = False
) -> Any:
    """The value in the JSON file ``path``, which is no link unless ``follow``."""
    return parse(read_bytes(path, max_bytes, follow=follow), path, max_values=max_values)


def read_number(path: Path) -> float:
    """The number in a JSON file, such as seconds so far; 0 where there is no file."""
    value = read_json(path) if os.path.lexists(path) else 0.0
    if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > 1e15:
        raise StorageError(f"{path} is altered: it holds {shown(value)}, not a number")
    return float(value)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` (a record or plain data) to ``path`` as indented JSON, atomically."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def faults(error: ValidationError) -> list[str]:
    """What pydantic found, a short sentence each."""
    found = [_sentence(detail) for detail in error.errors(include_url=False, include_context=False)]
    rest = len(found) - _SHOWN
    return found if rest <= 0 else [*found[:_SHOWN], f"and {rest} faults more"]


def _sentence(detail: Any) -> str:
    place = shown(".".join(str(part) for part in detail["loc"]) or "the whole")
    match detail["type"]:
        case "missing":
            return f"{place} is missing"
        case "extra_forbidden":
            return f"unknown key {place}"
        case "value_error" | "assertion_error":
            return f"{place}: {detail['msg'].partition(', ')[2]}"
    wanted = detail["msg"].removeprefix("Input should be ").removeprefix("Value should ")
    return f"{place} must be {wanted}, got {shown(detail['input'])}"


def shown(value: Any) -> str:
    """A value for a message: escaped, and cut where it is long."""
    text = repr(value if not isinstance(value, (str, bytes)) else value[:100])
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} is given twice")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _depth(data: bytes) -> int:
    """How deep valid JSON is nested."""
    depth = deepest = 0
    for byte in _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _too_deep(name: str | Path) -> StorageError:
    return StorageError(f"{name} is nested deeper than {MAX_DEPTH} levels; no file of wdae is")
