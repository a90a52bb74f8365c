"""The test for pictures of nothing (noise, text, plain colours): a direction that parts them from others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.calibration.familiarity import ends
from wdae.calibration.probabilities import minimise, quantiles
from wdae.calibration.unknown import Curve
from wdae.methods.records import QUANTILES
from wdae.nn.cosine import unit

_RIDGE, _WIDEST = 1e-3, 100.0
_FOLDS, _NEAREST = 5, 0.9  # of held-out pictures; the share of pictures of nothing that are no nearer


@dataclass(frozen=True, eq=False)
class OutlierTest:
    """The direction of pictures of nothing ``[D]``, and quantiles of base pictures along it.

    The spread is half of the way from the least of these to the nearest pictures of nothing, in deviations.
    """

    direction: Tensor
    outlying: Curve
    spread: float


def outlier_test(features: Tensor, kinds: Mapping[str, Tensor]) -> OutlierTest | None:
    """The direction that parts pictures of nothing, by their kinds, from held-out ones ``[M, D]``.

    Held-out pictures lie farther from nothing along a direction that was fitted to them than others do, the
    more so the fewer there are: a part of them at a time is measured along one that was fitted to the rest.
    """
    if not kinds:
        return None
    known, strange = unit(features), unit(torch.cat(list(kinds.values())))
    folds, part = min(_FOLDS, len(known)), torch.arange(len(known)) % _FOLDS
    along = known.new_empty(len(known))
    for fold in range(folds):
        rest = known[part != fold] if folds > 1 else known
        along[part == fold] = -(known[part == fold] @ _direction(rest, strange)[0])
    direction, between = _direction(known, strange)
    outlying = quantiles(with_least(along, between))
    least, deviation = ends(outlying)
    nearest = float((-(strange @ direction)).quantile(_NEAREST))
    spread = (least - nearest) / deviation / 2
    return OutlierTest(direction, outlying, min(max(0.0, spread), _WIDEST))


def _direction(known: Tensor, strange: Tensor) -> tuple[Tensor, float]:
    """From known pictures ``[M, D]`` to strange ones ``[m, D]``, by logistic regression.

    The number is how far against it pictures lie that are as likely of either kind.
    """
    rows = torch.cat([known, strange]).double()
    is_strange = torch.cat([torch.zeros(len(known)), torch.ones(len(strange))]).double()
    weight = torch.where(is_strange > 0, 0.5 / len(strange), 0.5 / len(known)).double()
    direction = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        lost = F.binary_cross_entropy_with_logits(rows @ direction + offset, is_strange, reduction="none")
        return weight @ lost + _RIDGE * direction.square().sum() / 2

    minimise([direction, offset], loss)
    return direction.detach().float(), float(offset.detach())


def with_least(values: Tensor, lowest: float = -math.inf) -> Tensor:
    """Values ``[M]`` of pictures and, where they are few, one that none to come is expected to be below.

    One in M + 1 pictures to come lies below the least of M. A share of 0 is left to what is as far below that
    as that is below the middle one, or is ``lowest``.
    """
    if len(values) >= QUANTILES - 1:
        return values
    least = values.min()
    below = (2 * least - values.median()).clamp(min=lowest)
    return torch.cat([torch.minimum(below, least).unsqueeze(0), values])
