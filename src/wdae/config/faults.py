"""What pydantic found wrong with a recipe, said so that the person who wrote it can mend it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wdae.config.text import kind
from wdae.errors import did_you_mean, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from wdae.config.keys import Key

_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_LENGTHS = {
    "too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
    "string_too_short": ("at least", "min_length"),
    "string_too_long": ("at most", "max_length"),
}


def sentences(
    errors: Sequence[ErrorDetails], keys: Sequence[Key], where: Callable[[tuple[str, ...]], str]
) -> list[str]:
    """One sentence for each key at fault.

    Args:
        errors: what ``ValidationError.errors()`` lists.
        keys: every key of the recipe, groups included.
        where: the place of a key, for the beginning of its sentence (``"line 3: "``).
    """
    known = {tuple(key.name.split(".")): key for key in keys}
    reported: set[tuple[str, ...]] = set()
    out = []
    for error in errors:
        loc = tuple(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            out.append(f"{where(loc)}unknown key '{'.'.join(loc)}'{_nearest_key(loc, known)}")
            continue
        # Past a known leaf the location names a list's element or a member of a union.
        depth = max((n for n in range(len(loc) + 1) if loc[:n] in known), default=len(loc))
        path, rest = loc[:depth], loc[depth:]
        if path in reported:
            continue
        reported.add(path)
        out.append(f"{where(path or loc)}{_sentence(error, path, rest, known.get(path))}")
    return out


def _sentence(error: ErrorDetails, path: tuple[str, ...], rest: tuple[str, ...], key: Key | None) -> str:
    name = ".".join(path)
    accepted = key.type if key is not None else error["msg"]
    value: Any = error["input"]
    context: dict[str, Any] = error.get("ctx") or {}
    place = f" (at {'.'.join(rest)})" if rest and rest[0].isdigit() else ""
    match error["type"]:
        case "missing":
            about = f": {key.description}" if key is not None and key.description else ""
            return f"'{name}' must be given ({accepted}){about}"
        case bound if bound in _BOUNDS:
            words, limit = _BOUNDS[bound]
            return f"'{name}' must be {words} {context[limit]:g}, got {value!r}{place}"
        case length if length in _LENGTHS:
            words, limit = _LENGTHS[length]
            return f"'{name}' must have {words} {context[limit]} elements, got {value!r}"
        case "literal_error" | "enum":
            choices = [choice.strip("'") for choice in accepted.split(" | ")]
            hint = did_you_mean(str(value), choices)
            return f"'{name}' must be one of {', '.join(choices)}; got {value!r}{hint}"
        case "value_error" | "assertion_error":
            problem = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            return f"'{name}': {problem}" if name else problem
        case _:
            return f"'{name}' must be {accepted}, got {value!r} ({kind(value)}){place}"


def _nearest_key(loc: tuple[str, ...], known: dict[tuple[str, ...], Key]) -> str:
    """A hint for an unknown key: a sibling's name, else the same name in another group, else all siblings."""
    siblings = [".".join(path) for path in known if path[:-1] == loc[:-1]]
    leaves = {path[-1]: ".".join(path) for path in known}
    name = ".".join(loc)
    by_sibling = did_you_mean(loc[-1], [sibling.rpartition(".")[2] for sibling in siblings])
    if by_sibling:
        wanted = by_sibling.split("'")[1]
        return f"; did you mean '{'.'.join((*loc[:-1], wanted))}'?"
    if loc[-1] in leaves:
        return f"; did you mean '{leaves[loc[-1]]}'?"
    return did_you_mean(name, [".".join(path) for path in known]) or nearest(name, siblings)
