"""The keys of a recipe: names, types in words, defaults, descriptions; for ``--help`` and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Key:
    """One key of a recipe, as documentation and ``--help`` show it."""

    name: str
    type: str
    default: Any
    description: str
    required: bool
    annotation: Any
    is_group: bool = False

    @property
    def names_place(self) -> bool:
        """Whether it names files or folders, as far as its type says."""
        return Path in _members(self.annotation)

    @property
    def default_text(self) -> str:
        """The default as one would type it."""
        return "" if self.required else _plain(self.default)


def describe(cls: type[BaseModel], *, groups: bool = False, _prefix: str = "") -> list[Key]:
    """Every key of a recipe with its type, default and description, in order.

    Args:
        cls: the recipe's class.
        groups: list the groups of keys too, each before its members.
    """
    out: list[Key] = []
    for field_name, field in cls.model_fields.items():
        name = f"{_prefix}{field.alias or field_name}"
        inner = _group(field.annotation)
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        text = _type_text(field.annotation) + _bounds(field)
        description = " ".join((field.description or "").split())
        required = field.is_required()
        if inner is None:
            out.append(Key(name, text, default, description, required, field.annotation))
            continue
        if groups:
            out.append(Key(name, "a group of keys", default, description, required, field.annotation, True))
        out += describe(inner, groups=groups, _prefix=f"{name}.")
    return out


def _group(annotation: Any) -> type[BaseModel] | None:
    """The group's class behind ``X`` or ``X | None``, if any."""
    members = (
        [a for a in get_args(annotation) if a is not NoneType] if _is_union(annotation) else [annotation]
    )
    if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], BaseModel):
        return members[0]
    return None


def _members(annotation: Any) -> list[Any]:
    return [annotation, *(one for inner in get_args(annotation) for one in _members(inner))]


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _type_text(annotation: Any, plural: bool = False) -> str:
    """A type in words: ``a whole number``, ``a list of numbers``, ``'gnn' | 'mlp'``."""
    origin, args = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _type_text(args[0], plural)
    if _is_union(annotation):
        return " or ".join(_type_text(a) for a in args)
    if origin is Literal:
        return " | ".join(repr(a) for a in args)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(repr(member.value) for member in annotation)
    if origin in (list, tuple, set, frozenset):
        if origin is tuple and Ellipsis not in args:
            return "a list of " + ", ".join(_type_text(a) for a in args)
        return "a list of " + _type_text(args[0], plural=True)
    if origin is dict:
        return f"a group of {_type_text(args[1], plural=True)} by {_type_text(args[0]).removeprefix('a ')}"
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
    words[Any] = "value"
    word = words.get(annotation, getattr(annotation, "__name__", str(annotation)))
    if annotation is NoneType:
        return "null"
    if annotation in (bool, str):
        return word
    return f"{word}s" if plural else f"a {word}"


def _bounds(field: FieldInfo) -> str:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    found = [f"{sign} {getattr(m, a):g}" for m in field.metadata for a, sign in signs if hasattr(m, a)]
    return f" {' and '.join(found)}" if found else ""


def _plain(value: Any) -> str:
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    return str(value)
