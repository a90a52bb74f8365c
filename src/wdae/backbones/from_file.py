"""Backbones that a file names: ours, or named by the user on the same call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from wdae.backbones.base import Backbone
from wdae.backbones.onnx_file import KIND, of_size
from wdae.backbones.preprocessing import LARGEST
from wdae.backbones.registry import build, names
from wdae.errors import ModelError, RecipeError
from wdae.storage.records import shown
from wdae.storage.trust import Trust, refuse_untrusted, trusting


def build_from_file(
    name: str,
    options: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    *,
    trust: Trust = (),
    where: str | Path,
) -> Backbone:
    """The backbone that a file names, not yet with the file's weights.

    Args:
        name, options: as in the file; refused unless trusted.
        shapes: of the file's weights, by name. One of ours is built only if it has just these, so that
            options cannot ask for more memory than the file has bytes.
        where: the file, for messages.
    """
    refuse_untrusted(name, trust, where)
    options = dict(options)
    try:
        if name in names():
            _check_sizes(options, name, where)
            with torch.device("meta"):
                expected = build(name, **options).state_dict()
            _check_shapes({key: value.shape for key, value in expected.items()}, shapes, name, where)
            return build(name, **options)
        if name.startswith(KIND):
            return of_size(shapes, options)
        if name.startswith(("timm:", "transformers:")):
            options["pretrained"] = False  # every weight comes from the file
        with trusting(trust):
            return build(name, **options)
    except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError, RecipeError) as error:
        raise ModelError(f"{where}: backbone {name!r} cannot be built with its options: {error}") from error


def _check_sizes(value: Any, name: str, where: str | Path) -> None:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
    for one in inner:
        if isinstance(one, list) and len(one) <= 16:
            _check_sizes(one, name, where)
        elif isinstance(one, (list, dict)) or (isinstance(one, (int, float)) and not 0 <= one <= LARGEST):
            raise ModelError(
                f"{where}: an option of backbone {name!r} is {one!r:.80}; 0 to {LARGEST} is accepted"
            )


def _check_shapes(
    expected: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]], name: str, where: str | Path
) -> None:
    wanted = {key for key in expected if not key.endswith("num_batches_tracked")}
    odd = [key for key in wanted if key not in given or tuple(given[key]) != tuple(expected[key])]
    odd += [key for key in given if key not in expected]
    if odd:
        raise ModelError(
            f"{where}: the file's weights do not fit backbone {name!r}: {len(odd)} are missing, unknown or of"
            f" another shape ({', '.join(map(shown, sorted(odd)[:3]))})"
        )
