"""Methods to evaluate, named on the command line: run folders, model files, or methods by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from wdae.errors import ModelError, nearest
from wdae.methods import Method, make, names
from wdae.methods.wdae_file import load_wdae


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
            methods.append(load_wdae(path, device, dtype))
        elif word in names():
            if word.startswith("wdae"):
                raise ModelError(f"{word} must be trained first: wdae train ...; then give its run folder")
            if word != "initial-estimate":
                methods.append(make(word))
        else:
            raise ModelError(f"{word!r} is no run folder, model file or method{nearest(word, names())}")
    return _distinct(methods)


def _distinct(methods: list[Method]) -> list[Method]:
    """Two runs of one recipe have the same name; results need different ones."""
    seen: dict[str, int] = {}
    for method in methods:
        seen[method.name] = seen.get(method.name, 0) + 1
        if seen[method.name] > 1:
            method.name = f"{method.name}-{seen[method.name]}"
    return methods
