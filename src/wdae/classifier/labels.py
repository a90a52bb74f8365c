"""Arrays of many kinds in, the same kind out; labels of any kind as names, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.errors import ModelError

Array = npt.NDArray[Any]
KINDS = {"U": "text", "T": "text", "O": "text", "i": "integer", "u": "integer", "b": "boolean", "f": "number"}


def as_array(values: Any) -> Any:
    """Tensors become arrays; everything else is left for scikit-learn to judge."""
    if type(values).__module__.partition(".")[0] == "torch":
        return values.detach().cpu().numpy()
    return values


def like(values: Array, given: Any, columns: Sequence[Any] | Array | None = None) -> Any:
    """Results as the kind that the input was: a tensor, a pandas object with its index, or an array.

    Text cannot be a tensor, so text labels for tensors come as an array.

    Args:
        columns: names of the columns of a two-dimensional result.
    """
    module = type(given).__module__.partition(".")[0]
    if module == "torch" and values.dtype.kind in "biuf":
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to(given.device)
    if module == "pandas":
        import pandas as pd

        if values.ndim == 2:
            return pd.DataFrame(values, index=given.index, columns=columns)
        return pd.Series(values, index=given.index)
    return values


def kind_of(labels: Array) -> str:
    """text, integer, boolean or number."""
    kind = KINDS.get(labels.dtype.kind)
    if kind is None or (labels.dtype.kind == "O" and not all(isinstance(x, str) for x in labels)):
        raise ModelError(f"labels are {labels.dtype}; give text or numbers, of one kind only")
    return kind


def to_names(labels: Array) -> list[str]:
    """Each label as text: the name that a model keeps it under."""
    return [str(label) for label in labels.tolist()]


def from_names(names: Sequence[str], kind: str) -> Array:
    """The labels behind names; of text, an array just wide enough."""
    if kind == "text":
        return np.array(names, dtype=np.str_)
    if kind == "boolean":
        return np.array([name == "True" for name in names])
    try:
        return np.array([int(name) if kind == "integer" else float(name) for name in names])
    except (ValueError, OverflowError) as error:
        raise ModelError(f"the model's labels are said to be of kind {kind!r:.40}: {error}") from None


def check_kind(labels: Array, kind: str) -> None:
    """New labels must be of the kind that the known ones are."""
    came = kind_of(labels)
    if came != kind:
        raise ModelError(
            f"the model's labels are of kind {kind}, the new ones of kind {came} (such as"
            f" {labels[0]!r}); give labels of the same kind"
        )
