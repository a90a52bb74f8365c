"""What a bank must be before anything is computed from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from wdae.bank.encoding import blocks, decode
from wdae.errors import BankError, listed
from wdae.parts import Part, mixed_kinds

_SMALLEST_NORM = 1e-12  # below it, normalising would not give a unit vector


def check_structure(
    features: Tensor, scales: Tensor | None, labels: Tensor, parts: Tensor, class_names: Sequence[str]
) -> None:
    """Sizes, dtypes, class names, labels and parts; cheap, so done on every opening too."""
    if features.ndim != 2 or 0 in features.shape:
        raise BankError(f"features have shape {list(features.shape)}; a bank takes [images, feature size]")
    n_rows = len(features)
    if (features.dtype == torch.int8) != (scales is not None):
        raise BankError("int8 features need a scale for each vector, and only they have one; give `scales`")
    for name, column in (("labels", labels), ("parts", parts), ("scales", scales)):
        if column is not None and column.shape != (n_rows,):
            raise BankError(f"{name} have shape {list(column.shape)}; {n_rows} features need [{n_rows}]")
    twice = [name for name, count in Counter(class_names).items() if count > 1]
    if twice:
        raise BankError(f"class names must differ; given more than once: {listed(map(repr, twice))}")
    n_classes = len(class_names)
    if n_rows and (int(labels.min()) < 0 or int(labels.max()) >= n_classes):
        rows = ((labels < 0) | (labels >= n_classes)).nonzero()[:, 0].tolist()
        raise BankError(
            f"labels must lie in 0 … {n_classes - 1} for {n_classes} class names; out of range:"
            f" {listed(f'{int(labels[row])} (row {row})' for row in rows)}"
        )
    if int(parts.max()) >= len(Part):
        raise BankError(
            f"parts hold the code {int(parts.max())}; accepted: "
            + ", ".join(f"{part.code} ({part.value})" for part in Part)
        )
    mixed = mixed_kinds(torch.unique(labels * len(Part) + parts).tolist(), class_names)
    if mixed:
        raise BankError(
            f"a class is base, validation or novel, and only one of them; given as more: {listed(mixed)}"
        )


def check_values(features: Tensor, scales: Tensor | None, labels: Tensor, class_names: Sequence[str]) -> None:
    """Every vector is finite and has a length: the first faulty rows are named with their classes."""
    faults: dict[str, list[int]] = {
        "NaN or infinite values": [],
        "only zeros": [],
        "too large to measure": [],
    }
    not_finite, zero, huge = faults.values()
    for rows in blocks(len(features)):
        values = decode(features[rows], None if scales is None else scales[rows])
        norms = torch.linalg.vector_norm(values, dim=1)
        good = norms.isfinite() & (norms > _SMALLEST_NORM)
        if good.all():
            continue
        finite = values.isfinite().all(1)
        not_finite += (rows.start + (~finite).nonzero()[:, 0]).tolist()
        zero += (rows.start + (finite & (norms <= _SMALLEST_NORM)).nonzero()[:, 0]).tolist()
        huge += (rows.start + (finite & ~norms.isfinite()).nonzero()[:, 0]).tolist()
    found = [
        f"{len(rows)} of {len(features)} feature vectors have {fault}: "
        + listed(f"row {row} (class {class_names[int(labels[row])]!r})" for row in rows)
        for fault, rows in faults.items()
        if rows
    ]
    if found:
        raise BankError("; ".join(found) + "; remove or recompute them")


def check_base_weights(weights: Tensor, n_base: int, dim: int, scale: float | None) -> None:
    """One finite, non-zero weight vector for each base class, of the features' size."""
    if weights.ndim != 2 or weights.shape[1] != dim:
        raise BankError(
            f"base weights have shape {list(weights.shape)}, the features have size {dim};"
            f" give [{n_base}, {dim}]: one row for each base class"
        )
    if len(weights) != n_base:
        raise BankError(f"there are {len(weights)} base weights for {n_base} base classes; give one for each")
    norms = torch.linalg.vector_norm(weights.to(torch.float32), dim=1)
    bad = (~(norms.isfinite() & (norms > _SMALLEST_NORM))).nonzero()[:, 0].tolist()
    if bad:
        raise BankError(f"base weights must be finite and not zero; faulty rows: {listed(map(str, bad))}")
    if scale is not None and not 0 < scale < float("inf"):
        raise BankError(f"the cosine scale is {scale}; it must be a positive number")


def check_query_only(query_only: Tensor | None, parts: Tensor) -> None:
    """One truth value an image, and none of those that are learned from in any case."""
    if query_only is None:
        return
    if query_only.dtype != torch.bool or query_only.shape != parts.shape:
        raise BankError(
            f"query_only is {query_only.dtype} of shape {list(query_only.shape)}; give bool [{len(parts)}]"
        )
    learned = int((query_only & (parts == Part.BASE_TRAIN.code)).sum())
    if learned:
        raise BankError(
            f"{learned} images are queries only and base-train; images that are never learned from belong "
            "into base-held-out, validation or novel"
        )
