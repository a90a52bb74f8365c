"""Typed recipes: YAML in, every key checked, all faults named at once.

A command's recipe is a subclass of :class:`Config` beside its code, in a module that does not import torch
(``--help`` lists its keys and must be quick). Descriptions are the strings below the fields:

>>> class Training(Config):
...     noise: float = Field(0.1, ge=0)
...     '''Standard deviation of the noise added to the weights.'''
...     shots: tuple[int, ...] = (1, 5)
>>> load(Training, None, {"noise": 0.05})
Training(noise=0.05, shots=(1, 5))
>>> load(Training, None, {"nois": 0.05, "shots": ["one"]})
Traceback (most recent call last):
...
wdae.errors.RecipeError: the recipe has 2 faults:
  'shots' must be a list of whole numbers, got 'one' (text) (at 0)
  unknown key 'nois'; did you mean 'noise'?

A field whose type is another Config is a group: its keys are ``group.key``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wdae.config import faults as recipe_faults
from wdae.config.inheritance import read
from wdae.config.keys import describe
from wdae.config.text import Text, can_be_path, scalar, write
from wdae.errors import RecipeError
from wdae.printing import printable

__all__ = ["Config", "Field", "dump", "load"]


class Config(BaseModel):
    """A group of recipe keys: unknown keys are refused, values cannot be changed afterwards.

    ``former`` maps names that keys had once to their present ones; :func:`load` still understands them.
    ``places`` are the keys of text, beside those of type Path, that may name a file or a folder.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="constants"
    )
    former: ClassVar[Mapping[str, str]] = {}
    places: ClassVar[tuple[str, ...]] = ()


T = TypeVar("T", bound=Config)


def load(
    cls: type[T], path: Path | None, overrides: Mapping[str, Any] | None = None, *, outside: bool = False
) -> T:
    """Read a recipe: defaults, then the file with what it ``extends``, then the overrides.

    Args:
        cls: the recipe's class.
        path: a YAML file, or None for defaults and overrides alone.
        overrides: values by dotted key (``{"training.noise": 0.1}``).
        outside: let the file name paths outside the working folder: for recipes that are not followed, only
            compared. Otherwise such a path is the user's to name, in ``overrides``.

    Raises:
        RecipeError: naming every unknown key, wrong type and value out of range at once.
    """
    name = "the recipe" if path is None else str(path)
    text = Text({}, {}, []) if path is None else read(path)
    given: set[tuple[str, ...]] = set()
    faults = list(text.faults)
    for old, new in cls.former.items():
        if old in text.data:
            text.data[new] = text.data.pop(old)
            text.places[(new,)] = text.places[(old,)]
    foreign = [] if outside else [(key, place) for key in places(cls) for place in _outside(text.data, key)]
    for key in describe(cls, groups=True):
        path_of_key = tuple(key.name.split("."))
        if key.is_group and key.required and not _has(text.data, path_of_key):
            _put(text.data, path_of_key, {})  # so that its own keys are named, not the group
    tables = {key.name: key.default for key in describe(cls) if isinstance(key.default, dict)}
    for dotted, value in (overrides or {}).items():
        keys = tuple(cls.former.get(dotted, dotted).split("."))
        given.add(keys)
        table = ".".join(keys[:-1])
        if table in tables and not _has(
            text.data, keys[:-1]
        ):  # one entry of a table leaves the others as they are
            _put(text.data, keys[:-1], {str(name): entry for name, entry in tables[table].items()})
        if not _put(text.data, keys, deepcopy(value)):  # later keys may go into it; the caller keeps its own
            faults.append(f"'{dotted}' cannot be set: '{'.'.join(keys[:-1])}' is a single value, not a group")

    def where(loc: tuple[str, ...]) -> str:
        if path is None or any(loc[:n] in given for n in range(1, len(loc) + 1)):
            return ""
        place = next((text.places[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in text.places), None)
        return "" if place is None else f"{place}: "

    faults += [
        f"{where(loc)}'{'.'.join(loc)}' is {place!r:.300}; a recipe names places below the working folder"
        f" only. If you mean this one, name it on the call: --{'.'.join(loc)} {place:.300}"
        for loc, place in foreign
        if loc not in given
    ]
    recipe, errors = _validate(cls, text.data)
    faults += recipe_faults.sentences(errors, describe(cls, groups=True), where)
    if faults or recipe is None:
        head = f"{name} has {len(faults)} faults:\n  " if len(faults) > 1 else f"{name}: "
        raise RecipeError(head + "\n  ".join(map(printable, faults)))
    return recipe


def dump(config: Config) -> str:
    """The recipe as YAML, every key written out; :func:`load` reads it back to an equal recipe."""
    return write(_data(config.model_dump()))


def places(cls: type[Config]) -> list[tuple[str, ...]]:
    """The keys of a recipe that may name a file or a folder."""
    return [tuple(key.name.split(".")) for key in describe(cls) if key.names_place or key.name in cls.places]


def _outside(value: Any, loc: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths at a key of a recipe's data that lead out of the working folder."""
    if isinstance(value, dict) and loc:
        yield from _outside(value.get(loc[0]), loc[1:])
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _outside(inner)
    elif isinstance(value, str):
        if Path(value).anchor or ".." in Path(value).parts or not can_be_path(value):
            yield value
        elif "=" in value:  # KEY=VALUE, for another recipe
            yield from _outside(scalar(value.partition("=")[2].strip()))


def _has(data: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _put(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> bool:
    for key in keys[:-1]:
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict):
            return False
    data[keys[-1]] = value
    return True


def _validate(cls: type[T], data: dict[str, Any]) -> tuple[T | None, list[Any]]:
    """Validate as strict JSON: no text for numbers, but lists for tuples and text for paths and choices.

    Two conversions that lose nothing are made besides: ``1e4`` for a whole number, one value for a list.
    """
    for _ in range(3):
        try:
            return cls.model_validate_json(json.dumps(data, default=str), strict=True), []
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if not sum(_mend(data, detail) for detail in errors):
                return None, errors
    return None, errors


def _mend(data: Any, error: Any) -> bool:
    value, loc = error["input"], error["loc"]
    if error["type"] == "int_type" and isinstance(value, float) and value.is_integer():
        value = int(value)
    elif error["type"] in ("tuple_type", "list_type") and isinstance(value, (int, float, str)):
        value = [value]
    else:
        return False
    for part in loc[:-1]:
        # A union's member stands in the location but not in the data: such values are left as they came.
        if not (isinstance(data, dict) and part in data) and not (
            isinstance(data, list) and isinstance(part, int)
        ):
            return False
        data = data[part]
    if not isinstance(data, (dict, list)) or (isinstance(data, dict) and loc[-1] not in data):
        return False
    data[loc[-1]] = value
    return True


def _data(value: Any) -> Any:
    if isinstance(value, dict):
        return {name if isinstance(name, int) else str(name): _data(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_data(inner) for inner in value]
    if isinstance(value, Enum):
        return _data(value.value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
