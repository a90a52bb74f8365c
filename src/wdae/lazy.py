"""Names of a package that are imported when they are first used, so that importing the package is quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562).

    Args:
        package: its name.
        names: by module, the names that come from there; ``name=other`` is ``other`` there.

    >>> lazy_names("wdae", {"wdae.errors": ["nearest"]})("nearest").__name__
    'nearest'
    """
    places = {name.partition("=")[0]: (module, name) for module, some in names.items() for name in some}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, written = places[name]
        return getattr(importlib.import_module(module), written.rpartition("=")[2])

    return get
