"""Methods to evaluate, named on the command line: run folders, model files, or methods by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from wdae.errors import ModelError, nearest
from wdae.methods import Method, is_learned, make, names
from wdae.methods.saved import load_method


def load_methods(words: Sequence[str], device: torch.device, dtype: torch.dtype) -> list[Method]:
    """The methods, the initial estimate first."""
    methods: list[Method] = [make("initial-estimate")]
    for word in words:
        path = Path(word)
        if path.is_dir():
            path = path / "model.safetensors"
            if not path.exists():
                raise ModelError(f"{word} holds no model.safetensors; give a run that was trained to its end")
        if path.is_file():
            methods.append(load_method(path, device, dtype))
        elif word in names():
            if is_learned(word):
                how = "" if word.startswith("wdae") else f" --method {word}"
                raise ModelError(
                    f"{word} must be trained first: wdae train{how} ..., then give its run folder; "
                    "or use wdae compare, which trains what it compares"
                )
            if word != "initial-estimate":
                methods.append(make(word))
        else:
            hint = nearest(word, names())
            raise ModelError(f"{word!r} is no run folder, model file or method{hint} (see wdae methods)")
    return _distinct(methods)


def _distinct(methods: list[Method]) -> list[Method]:
    """Two runs of one recipe have the same name; results need different ones."""
    seen: dict[str, int] = {}
    for method in methods:
        seen[method.name] = seen.get(method.name, 0) + 1
        if seen[method.name] > 1:
            method.name = f"{method.name}-{seen[method.name]}"
    return methods
