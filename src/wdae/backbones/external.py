"""Bring your own backbone: a factory of yours, or a model of timm or transformers."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from wdae.backbones.base import Backbone
from wdae.errors import RecipeError, WdaeError


def _library(name: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # Neither library is an extra of ours: any version with the calls below will do.
        raise WdaeError(f"{purpose} needs {name}; install it with: pip install {name}") from error


class _Pooled(nn.Module):
    """A transformers model as tensor in, feature vector out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images)
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            hidden: Tensor = output.last_hidden_state
            # Tokens [B, T, D] of a transformer, or a map [B, D, S, S] of a convolutional network.
            pooled = hidden.mean(dim=1) if hidden.dim() == 3 else hidden.mean(dim=(2, 3))
        features: Tensor = pooled.flatten(1)
        return features


def _from_timm(name: str, pretrained: bool = True, image_size: int | None = None) -> Backbone:
    timm = _library("timm", f"backbone 'timm:{name}'")
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except RuntimeError as error:
        raise RecipeError(f"timm has no model {name!r}: {error}") from error
    side = image_size or int(model.default_cfg["input_size"][-1])
    return _wrap(model, f"timm:{name}", side)


def _from_transformers(name: str, pretrained: bool = True, image_size: int | None = None) -> Backbone:
    transformers = _library("transformers", f"backbone 'transformers:{name}'")
    try:
        if pretrained:
            model = transformers.AutoModel.from_pretrained(name)
        else:
            model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(name))
    except (OSError, ValueError) as error:
        raise RecipeError(f"transformers cannot open {name!r}: {error}") from error
    stated = getattr(model.config, "image_size", None)
    side = image_size or (stated if isinstance(stated, int) else 224)
    return _wrap(_Pooled(model), f"transformers:{name}", side)


def _from_factory(name: str, image_size: int = 224, **options: Any) -> Backbone:
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise RecipeError(f"backbone {name!r}: cannot import {module_name!r}: {error}") from error
    except AttributeError as error:
        raise RecipeError(f"backbone {name!r}: module {module_name!r} has no {attribute!r}") from error
    try:
        model = factory(**options)
    except TypeError as error:
        raise RecipeError(f"backbone {name!r} does not take the options given: {error}") from error
    if not isinstance(model, nn.Module):
        raise RecipeError(f"backbone {name!r} gave a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, Backbone):
        return model
    return _wrap(model, name, int(getattr(model, "image_size", image_size)))


def _wrap(model: nn.Module, name: str, image_size: int) -> Backbone:
    """Learn the feature size from one blank picture, refusing what is not one vector (or map) a picture."""
    was_training = model.training
    with torch.no_grad():
        out = model.eval()(torch.zeros(1, 3, image_size, image_size))
    model.train(was_training)
    if not isinstance(out, Tensor) or out.dim() not in (2, 4):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RecipeError(
            f"backbone {name!r} gives {shape} for one picture; accepted: a tensor [B, D] or [B, D, S, S]"
        )
    return Backbone([model], out.shape[1], image_size)


def build_external(name: str, options: dict[str, Any]) -> Backbone:
    """The backbone behind ``timm:NAME``, ``transformers:NAME`` or ``pkg.module:factory``."""
    kind, _, rest = name.partition(":")
    if kind in ("timm", "transformers"):
        unknown = sorted(set(options) - {"pretrained", "image_size"})
        if unknown:
            raise RecipeError(f"backbone {name!r} takes pretrained and image_size, not {', '.join(unknown)}")
        return _from_timm(rest, **options) if kind == "timm" else _from_transformers(rest, **options)
    return _from_factory(name, **options)
