"""Several banks of the same pictures as one: the backbones' features side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from wdae.bank.encoding import blocks
from wdae.bank.feature_bank import FeatureBank, class_means
from wdae.errors import BankError
from wdae.parts import Part


def join_banks(banks: Sequence[FeatureBank]) -> FeatureBank:
    """One bank whose features are the unit-length features of all banks, side by side.

    A cosine in it is the mean of the banks' cosines: an ensemble of backbones in one vector. The banks hold
    the same pictures in the same order, as extraction of one data set gives them; labels are compared. A base
    picture that any of the backbones was trained on is base-train in the joined bank.

    Shapes: features ``[M, D_1 + ... + D_n]``.

    >>> one = FeatureBank.build(torch.eye(4), [0, 0, 1, 1], ["cat", "okapi"], Part.NOVEL)
    >>> join_banks([one, one]).dim
    8
    """
    first = banks[0]
    if len(banks) < 2:
        raise BankError("joining takes two banks or more")
    for number, bank in enumerate(banks[1:], start=2):
        if bank.class_names != first.class_names or not torch.equal(bank.labels, first.labels):
            raise BankError(
                f"bank {number} does not hold the same pictures as the first, in the same order: "
                f"{len(bank.labels)} of {len(bank.class_names)} classes, not {len(first.labels)} of "
                f"{len(first.class_names)} classes, or other labels"
            )
    parts = _joint_parts(banks)
    features = torch.empty(len(first.labels), sum(bank.dim for bank in banks))
    share = len(banks) ** -0.5
    for block in blocks(len(first.labels)):
        rows = torch.arange(len(first.labels))[block]
        features[block] = torch.cat([bank.unit_rows(rows) for bank in banks], dim=1) * share
    queries = [bank.query_only for bank in banks if bank.query_only is not None]
    joined = FeatureBank.build(
        features,
        first.labels,
        first.class_names,
        parts,
        info={"joined": [bank.info for bank in banks]},
        query_only=torch.stack(queries).any(0) if queries else None,
    )
    if all(bank.base_weights is None for bank in banks):
        return joined
    weights = [class_means(bank) if bank.base_weights is None else bank.base_weights for bank in banks]
    scales = [bank.cosine_scale for bank in banks if bank.cosine_scale is not None]
    # Side by side, rows of unit length: a base score too is the mean of the banks' cosines.
    together = torch.cat([F.normalize(rows, dim=1) for rows in weights], dim=1) * share
    return joined.with_base_weights(together, sum(scales) / len(scales) if scales else None)


def _joint_parts(banks: Sequence[FeatureBank]) -> torch.Tensor:
    parts = banks[0].parts.clone()
    base = parts <= Part.BASE_HELD_OUT.code
    for number, bank in enumerate(banks[1:], start=2):
        if not torch.equal(base, bank.parts <= Part.BASE_HELD_OUT.code):
            raise BankError(f"bank {number} has other base classes than the first; join banks of one split")
        if not torch.equal(parts[~base], bank.parts[~base]):
            raise BankError(f"bank {number} has other validation or novel classes than the first")
        parts[bank.parts == Part.BASE_TRAIN.code] = Part.BASE_TRAIN.code
    return parts
