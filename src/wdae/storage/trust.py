"""No code from data: what a file names is run only if it is ours, or named by the user on the same call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from wdae.errors import ModelError, RunError
from wdae.storage.records import shown

Trust = str | Sequence[str]
"""Code of others that files may name, each as ``pkg.module:factory``."""

_TIMM = re.compile(r"timm:[a-z0-9][a-z0-9_.-]{0,120}")
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"
_TRANSFORMERS = re.compile(rf"transformers:(?P<model>(?:{_PART}/)?{_PART})")
_named: ContextVar[tuple[str, ...]] = ContextVar("trusted", default=())


@contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Trust what the user has named while the body runs: ``wdae COMMAND --trust pkg.module:factory``."""
    token = _named.set((*_named.get(), *_each(trust)))
    try:
        yield
    finally:
        _named.reset(token)


def is_trusted(name: str, trust: Trust = ()) -> bool:
    """Whether the user has named this code, in ``trust`` or for the whole command."""
    return name in (*_each(trust), *_named.get())


def refuse_untrusted(name: str, trust: Trust, where: str | Path) -> None:
    """Raise where a file names code of others that the user did not name.

    Names without a colon are those of our registry; models of timm and transformers are code of those
    libraries, as long as they are plain names and no paths.

    >>> refuse_untrusted("resnet12", (), "model.json")
    >>> refuse_untrusted("my.networks:small", "my.networks:small", "model.json")
    >>> refuse_untrusted("os:system", (), "model.json")
    Traceback (most recent call last):
    ...
    wdae.errors.ModelError: model.json names 'os:system', code that does not come with wdae, ...
    """
    if ":" not in name or is_trusted(name, trust) or _TIMM.fullmatch(name):
        return
    hub = _TRANSFORMERS.fullmatch(name)
    if hub is not None and not Path(hub["model"]).exists():  # a folder of that name would be read
        return
    to_type = repr(name[:1_000])[1:-1]  # whole, for it is to be typed
    raise ModelError(
        f"{where} names {shown(name)}, code that does not come with wdae, so it is not run; if you know and"
        f' trust it, name it: --trust {to_type} (in Python: trust="{to_type}")'
    )


def refuse_unnamed(
    begun: Mapping[str, Any], named: Mapping[str, Any], where: str | Path, command: str
) -> None:
    """Raise where unfinished work was begun with other paths than those named on this call.

    Whoever made the folder chose what it says: that is compared with the user's words, and never opened.

    >>> refuse_unnamed({"bank": "birds"}, {"bank": "birds"}, "run", "wdae compare")
    >>> refuse_unnamed({"bank": "birds"}, {"bank": None}, "run", "wdae compare --bank birds -o run --resume")
    Traceback (most recent call last):
    ...
    wdae.errors.RunError: run was begun with bank birds; a file's word opens nothing, so name the same ...
    """
    other = [key for key in begun if begun[key] != named[key]]
    if other:
        was = " and ".join(f"{key} {begun[key]}" if begun[key] else f"no {key}" for key in other)
        raise RunError(
            f"{where} was begun with {was}; a file's word opens nothing, so name the same again: {command}"
        )


def _each(trust: Trust) -> tuple[str, ...]:
    return (trust,) if isinstance(trust, str) else tuple(trust)
