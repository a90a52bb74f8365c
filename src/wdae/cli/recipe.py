"""Commands driven by a recipe: ``wdae train --recipe FILE --training.noise 0.05 ...``.

A command's function takes the recipe first and its own options after it; the decorator adds ``--recipe``
and one typed, documented option per key of the recipe. What stands on the command line wins over the file,
the file over the defaults; only options that were really given override anything::

    @recipe_command(TrainRecipe)
    def train(recipe: TrainRecipe, *, bank: Path, output: Output) -> None:
        '''Train a denoiser of class weights on a feature bank.

        Parameters
        ----------
        bank
            The feature bank.
        '''

Values are written as in YAML: ``--training.noise 1e-3``, ``--training.clip null``. Lists take several
words, commas, or the option several times: ``--evaluation.shots 1 5``, ``--evaluation.shots 1,5``. Flags
are ``--a.flag`` or ``--a.flag false``; values by name ``--a.epsilon.5 0.3`` or JSON. All faults of file and
command line are named at once (:func:`wdae.config.load`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter
from pydantic import TypeAdapter, ValidationError

from wdae.config import Config, Key, describe, load, recipe_file, scalar
from wdae.storage.trust import refuse_untrusted, trusting

T = TypeVar("T", bound=Config)
_KEYS = Group("Recipe keys", sort_key=10, help="Each overrides the recipe file.")
_RECIPE = "YAML file, or a recipe that ships by its name (mini-imagenet/wdae-gnn); defaults without one."
_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}
_LISTS = (list, tuple, set, frozenset)


def recipe_command(
    config: type[T], *, default: Callable[[], Path] | None = None, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn a function whose first argument is a recipe into a command with an option for each of its keys.

    With a ``default`` file, that is what keys override where no ``--recipe`` is given; where nothing is given
    at all, the function gets None. Keys ``without`` meaning for the command are left out.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        names = {f"key_{i}": key for i, key in enumerate(describe(config)) if key.name not in without}
        shown = cache(lambda: load(config, default())) if default is not None else None
        by_name = {key.name: key for key in names.values()}
        former = {f"former_{old}": (old, by_name[new]) for old, new in config.former.items()}

        def command(*args: Any, recipe: Path | None = None, **options: Any) -> Any:
            known = names | {option: key for option, (_, key) in former.items()}
            given = [(known[option], options.pop(option)) for option in list(options) if option in known]
            overrides = parse_overrides(given)
            if default is not None and recipe is None:
                return function(load(config, default(), overrides) if overrides else None, *args, **options)
            if recipe is not None and recipe.suffix not in (".yaml", ".yml"):
                recipe = recipe_file(recipe)
            resolved = load(config, recipe, overrides)
            if recipe is not None and "backbone" not in overrides:
                refuse_untrusted(str(getattr(resolved, "backbone", None) or ""), (), recipe)
            with trusting(str(overrides.get("backbone") or "")):
                return function(resolved, *args, **options)

        annotations = {option: _annotation(key, shown=shown) for option, key in names.items()}
        annotations |= {option: _annotation(key, old) for option, (old, key) in former.items()}
        signature = _signature(function, annotations)
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {option.name: option.annotation for option in signature.parameters.values()}
        return command

    return register


def parse_overrides(given: Iterable[tuple[Key, Any]]) -> dict[str, Any]:
    """Overrides for :func:`wdae.config.load` from the words given for each key."""
    overrides: dict[str, Any] = {}
    for key, words in given:
        if words is None:
            continue
        if isinstance(words, dict):
            named = {name.replace("-", "_"): word for name, word in words.items()}
            overrides.update({f"{key.name}.{name}": scalar(word) for name, word in named.items()})
        elif isinstance(words, list):
            overrides[key.name] = _list(words, key)
        else:
            overrides[key.name] = words if isinstance(words, bool) else _value(words, key)
    return overrides


def _list(words: list[str], key: Key) -> Any:
    if len(words) == 1 and scalar(words[0]) is None:
        return None
    if len(words) == 1 and isinstance(scalar(words[0]), list):
        return scalar(words[0])
    element = next((a for a in get_args(_without_none(key.annotation)) if a is not Ellipsis), str)
    parts = [part for word in words for part in (word.split(",") if element is not str else [word])]
    return [_value(part.strip(), key, element) for part in parts if part.strip()]


def _value(word: str, key: Key, annotation: Any = None) -> Any:
    """The value of a word: what YAML makes of it if the key accepts that, else the word itself if it can."""
    annotation = key.annotation if annotation is None else annotation
    meant = scalar("null" if word.lower() == "none" else word)
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    for candidate in (meant, word):
        try:
            adapter.validate_python(candidate, strict=isinstance(candidate, (int, float)))
            return candidate
        except ValidationError:
            continue
    return meant


def _signature(function: Callable[..., Any], keys: Mapping[str, Any]) -> inspect.Signature:
    """The function's own options without the recipe, ``--recipe``, and an option per key, by annotation."""
    hints = get_type_hints(function, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()
    own = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    about = Parameter(name=["--recipe", "-r"], help=_RECIPE)
    only = inspect.Parameter.KEYWORD_ONLY
    file = inspect.Parameter("recipe", only, default=None, annotation=Annotated[Path | None, about])
    given = [inspect.Parameter(name, only, default=None, annotation=kind) for name, kind in keys.items()]
    return inspect.Signature([*own, file, *given])


def _annotation(key: Key, former: str | None = None, shown: Callable[[], Config] | None = None) -> Any:
    """How cyclopts reads a key: as text, since :func:`wdae.config.load` judges all types at once.

    A ``former`` name is understood but not listed. Defaults are those of the recipe that ``shown`` gives,
    which is read when help is asked for.
    """
    plain = _without_none(key.annotation)
    description = key.description.replace("``", "")
    sentence = f"{description} ({key.type})" if description else key.type

    def default(_: object) -> str:
        if shown is None:
            return key.default_text
        value: Any = shown()
        for part in key.name.split("."):
            value = getattr(value, part)
        return replace(key, default=value, required=False).default_text

    show = default if shown is not None or not key.required else False
    option = f"--{former or key.name}".replace("_", "-")
    common: dict[str, Any] = {"name": option, "group": _KEYS, "help": sentence, "show_default": show}
    common["show"] = former is None
    if plain is bool:
        return Annotated[bool | None, Parameter(**common, negative="")]
    if get_origin(plain) in _LISTS:
        element = _METAVARS.get(next(iter(get_args(plain)), str), "VALUE")
        several = Parameter(**common, negative="", consume_multiple=True, metavar=f"{element}...")
        return Annotated[list[str] | None, several]
    if get_origin(plain) is dict:
        return Annotated[dict[str, str] | None, Parameter(**common, negative="", metavar=".NAME VALUE")]
    return Annotated[str | None, Parameter(**common, metavar=_METAVARS.get(plain, "VALUE"))]


def _without_none(annotation: Any) -> Any:
    members = [a for a in get_args(annotation) if a is not type(None)]
    return members[0] if type(None) in get_args(annotation) and len(members) == 1 else annotation
