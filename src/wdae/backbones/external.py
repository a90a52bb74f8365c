"""Bring your own backbone: a factory of yours, a model of timm or transformers, an ONNX file."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from wdae.backbones.base import Backbone
from wdae.backbones.onnx_file import KIND, from_onnx
from wdae.backbones.preprocessing import Preprocessing
from wdae.errors import RecipeError, WdaeError, first_line
from wdae.storage.trust import is_trusted

_PILLOW = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # as transformers numbers them


def _library(name: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # Neither library is an extra of ours: any version with the calls below will do.
        raise WdaeError(
            f"{purpose} needs {error.name or name}; install it with: pip install {error.name or name}"
        ) from error
    except Exception as error:  # as a torchvision made for another torch raises
        raise WdaeError(
            f"{purpose} needs {name}, which is installed but does not start: {first_line(error, 300)}. Often"
            " its torchvision was made for another torch: install torch and torchvision together"
        ) from error


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
    except Exception as error:  # an unknown name, or anything that goes wrong while it fetches weights
        raise RecipeError(f"timm cannot make {name!r}: {first_line(error, 300)}") from error
    return _wrap(model, f"timm:{name}", of_timm(_timm_facts(model), image_size))


def _timm_facts(model: nn.Module) -> Mapping[str, Any]:
    """The data configuration of a model of timm; empty where it is none."""
    for attribute in ("pretrained_cfg", "default_cfg"):
        facts = getattr(model, attribute, None)
        if isinstance(facts, Mapping) and "input_size" in facts:
            return facts
    return {}


def of_timm(facts: Mapping[str, Any], image_size: int | None = None) -> Preprocessing:
    """How a model of timm wants its pictures, by its data configuration.

    >>> print(of_timm({"input_size": (3, 224, 224), "crop_pct": 0.9, "interpolation": "bicubic"}))
    224 px of the middle of 248 (shortest, bicubic), mean 0.485 0.456 0.406, std 0.229 0.224 0.225
    """
    side = image_size or int(facts["input_size"][-1])
    mode = facts.get("crop_mode", "center")
    if mode not in ("center", "squash"):
        raise RecipeError(f"a model of timm with crop_mode {mode!r} is not supported; 'center', 'squash' are")
    return Preprocessing.of(
        {
            "image_size": side,
            "resize": math.floor(side / float(facts.get("crop_pct") or 0.875)),
            "fit": "shortest" if mode == "center" else "stretch",
            "interpolation": facts.get("interpolation") or "bilinear",
            "mean": facts.get("mean"),
            "std": facts.get("std"),
        },
        "the model of timm",
    )


def _from_transformers(name: str, pretrained: bool = True, image_size: int | None = None) -> Backbone:
    transformers = _library("transformers", f"backbone 'transformers:{name}'")
    rule = None
    try:
        if pretrained:
            model = transformers.AutoModel.from_pretrained(name, trust_remote_code=False)
            processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
            rule = of_transformers(processor, image_size)
        else:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
            model = transformers.AutoModel.from_config(config)
    except WdaeError:
        raise
    except Exception as error:  # whatever goes wrong while it looks for its files
        raise RecipeError(f"transformers cannot open {name!r}: {first_line(error, 300)}") from error
    if rule is None:  # weights come from a file, and so does how pictures are prepared
        stated = getattr(model.config, "image_size", None)
        rule = Preprocessing(image_size=image_size or (stated if isinstance(stated, int) else 224))
    return _wrap(_Pooled(model), f"transformers:{name}", rule)


def of_transformers(processor: Any, image_size: int | None = None) -> Preprocessing:
    """How a model of transformers wants its pictures, by its image processor.

    >>> from types import SimpleNamespace
    >>> size = {"shortest_edge": 256}
    >>> print(of_transformers(SimpleNamespace(size=size, crop_size={"height": 224, "width": 224}, resample=3,
    ...     do_center_crop=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)))
    224 px of the middle of 256 (shortest, bicubic), mean 0.5 0.5 0.5, std 0.5 0.5 0.5
    """

    def does(step: str) -> bool:
        value = getattr(processor, f"do_{step}", None)
        return value is None or bool(value)

    size = dict(getattr(processor, "size", None) or {})
    short, tall, wide = (size.get(key) for key in ("shortest_edge", "height", "width"))
    cuts = bool(getattr(processor, "do_center_crop", False))
    cut = dict(getattr(processor, "crop_size", None) or {}) if cuts else {}
    share = getattr(processor, "crop_pct", None)
    if short and share:  # ConvNeXt's: below 384 pixels it cuts, from there on it stretches
        side, resize, fit = (
            (short, short, "stretch") if short >= 384 else (short, int(short / share), "shortest")
        )
    elif cut:
        side, resize, fit = cut.get("height"), short or tall, "shortest" if short else "stretch"
    else:
        side, resize, fit = tall, tall, "stretch"
    if not does("resize") or not side or cut.get("width", side) != side or (not short and tall != wide):
        raise RecipeError(
            f"the image processor makes no squares of one size (size {size}, crop {cut}), so it is not"
            " supported"
        )
    factor = float(getattr(processor, "rescale_factor", None) or 1 / 255) if does("rescale") else 1.0
    normalises = does("normalize")
    resample = getattr(processor, "resample", None)
    found = Preprocessing.of(
        {
            "image_size": side,
            "resize": resize,
            "fit": fit,
            "rounding": "down",
            "interpolation": _PILLOW[int(resample)] if resample is not None else "bilinear",
            "mean": getattr(processor, "image_mean", None) if normalises else (0.0, 0.0, 0.0),
            "std": getattr(processor, "image_std", None) if normalises else (1.0, 1.0, 1.0),
            "value_range": 255 * factor,
        },
        "the image processor",
    )
    return found if image_size is None else found.changed(side=image_size)


def _from_factory(name: str, image_size: int = 224, **options: Any) -> Backbone:
    module_name, _, attribute = name.partition(":")
    with _working_folder(is_trusted(name)):
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
    stated = {key: getattr(model, key, None) for key in Preprocessing.model_fields}
    stated = {
        key: value for key, value in stated.items() if isinstance(value, int | float | str | list | tuple)
    }
    if not stated and (facts := _timm_facts(model)):
        return _wrap(model, name, of_timm(facts))
    return _wrap(model, name, Preprocessing.of({"image_size": image_size} | stated, f"backbone {name!r}"))


@contextmanager
def _working_folder(is_named: bool) -> Iterator[None]:
    """Let a factory that the user has named on this call be found in the working folder too."""
    here = str(Path.cwd())
    added = is_named and here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)


def _wrap(model: nn.Module, name: str, rule: Preprocessing) -> Backbone:
    """Learn the feature size from one blank picture, refusing what is not one vector (or map) a picture."""
    was_training = model.training
    with torch.no_grad():
        out = model.eval()(torch.zeros(1, 3, rule.image_size, rule.image_size))
    model.train(was_training)
    if not isinstance(out, Tensor) or out.dim() not in (2, 4):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RecipeError(
            f"backbone {name!r} gives {shape} for one picture; accepted: a tensor [B, D] or [B, D, S, S]"
        )
    return Backbone([model], out.shape[1], rule.image_size, preprocessing=rule)


def build_external(name: str, options: dict[str, Any]) -> Backbone:
    """The backbone behind ``timm:NAME``, ``transformers:NAME``, ``onnx:FILE`` or ``pkg.module:factory``."""
    kind, _, rest = name.partition(":")
    if name.startswith(KIND):
        network, rule = from_onnx(rest, **options)
        return _wrap(network, name, rule)
    if kind in ("timm", "transformers"):
        unknown = sorted(set(options) - {"pretrained", "image_size"})
        if unknown:
            raise RecipeError(f"backbone {name!r} takes pretrained and image_size, not {', '.join(unknown)}")
        return _from_timm(rest, **options) if kind == "timm" else _from_transformers(rest, **options)
    return _from_factory(name, **options)
