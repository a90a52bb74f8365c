"""YAML text of recipes to plain data and back, with the line on which each key stands.

PyYAML follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and ``1:30`` is ninety. Recipes follow the
core schema of YAML 1.2, which reads numbers and words the way people mean them; and a key given twice,
which PyYAML silently resolves to the last one, is a fault. The text may be a stranger's: its size, its depth
and what its aliases expand to are bounded, and tags are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from wdae.errors import RecipeError

Path_ = tuple[str, ...]

_CORE_SCHEMA = [
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        re.compile(
            r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
]


MAX_LETTERS, MAX_NODES, MAX_DEPTH = 2**16, 10_000, 32


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LETTERS:
            raise yaml.YAMLError(f"{len(text)} letters, more than the {MAX_LETTERS} a recipe may have")
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[str, int] = {}  # of what each anchor stands for, in nodes

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            # An anchor that is still open has no size yet: it would hold itself.
            self._count(self._sizes.get(str(event.anchor), MAX_NODES + 1), event)
            return super().compose_node(parent, index)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not accepted", problem_mark=event.start_mark)
        before = self._nodes
        self._depth += 1
        self._count(1, event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            problem = f"more than {MAX_NODES} values, aliases expanded, or nested deeper than {MAX_DEPTH}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)
# Short lists of numbers read best on one line; mappings stay one key a line.
_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _represent_text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Line breaks other than a plain newline survive only between double quotes, written as escapes."""
    style = '"' if len(value.splitlines()) > 1 or value != value.strip() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


@dataclass(frozen=True)
class Text:
    """A parsed recipe: its data, the place of each key (``line 3``), and faults seen while parsing."""

    data: dict[str, Any]
    places: dict[Path_, str]
    faults: list[str]


def scalar(text: str) -> Any:
    """What a value given on the command line means: a number, a boolean, null, a list, or text.

    >>> scalar("1e-3"), scalar("[1, 5]"), scalar("no"), scalar("null")
    (0.001, [1, 5], 'no', None)
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):
        return text


def can_be_path(text: str) -> bool:
    """Whether the system could open such a name at all: no NUL, no half of a surrogate pair, not too long.

    >>> can_be_path("a/é.yaml"), can_be_path("a\\0"), can_be_path("\\ud800"), can_be_path("a" * 256)
    (True, False, False, False)
    """
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        return False
    return len(text.encode()) <= 2_000 and all(len(part.encode()) <= 255 for part in text.split("/"))


def parse(text: str, name: str) -> Text:
    """Parse a recipe's text; ``name`` stands for it in messages."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise RecipeError(f"{name}{where}: not valid YAML: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise RecipeError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(
            f"{name}: a recipe is a list of 'key: value' lines; this file holds one {kind(data)}"
        )
    places: dict[Path_, str] = {}
    faults: list[str] = []
    _walk(node, (), places, faults)
    return Text(data, places, faults)


def _walk(node: Any, path: Path_, places: dict[Path_, str], faults: list[str]) -> None:
    """Note the line of every key under a node, and every key that stands there twice."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*path, str(key.value))
        place = f"line {key.start_mark.line + 1}"
        if inner in places:
            faults.append(f"{place}: key '{'.'.join(inner)}' is given twice (first on {places[inner]})")
        places[inner] = place
        _walk(value, inner, places, faults)


def write(data: dict[str, Any]) -> str:
    """Plain data as YAML text, keys in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def kind(value: Any) -> str:
    """A word for the type of a plain value, as a person would say it."""
    words = {
        str: "text",
        bool: "true/false",
        int: "whole number",
        float: "number",
        list: "list",
        dict: "group",
    }
    return "nothing" if value is None else words.get(type(value), type(value).__name__)
