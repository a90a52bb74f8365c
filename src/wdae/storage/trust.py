"""No code from data: what a file names is run only if it is ours, or named by the user on the same call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from wdae.errors import ModelError
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
    raise ModelError(
        f"{where} names {shown(name)}, code that does not come with wdae, so it is not run; if you know and"
        f' trust it, name it: --trust {shown(name)[1:-1]} (in Python: trust="{shown(name)[1:-1]}")'
    )


def _each(trust: Trust) -> tuple[str, ...]:
    return (trust,) if isinstance(trust, str) else tuple(trust)
