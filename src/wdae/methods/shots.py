"""Values that depend on the number of shots: known for some numbers, interpolated for the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor


def step_for(shots: float, steps: Mapping[int, float]) -> float:
    """ε for a number of shots: as chosen, or interpolated in log K between those chosen.

    >>> step_for(1, {1: 1.0, 4: 0.5}), step_for(2, {1: 1.0, 4: 0.5}), step_for(50, {1: 1.0, 4: 0.5})
    (1.0, 0.75, 0.5)
    """
    known = sorted(steps)
    if not known:
        return 1.0
    if shots in steps:
        return steps[int(shots)]
    if shots <= known[0]:
        return steps[known[0]]
    for low, high in itertools.pairwise(known):
        if shots <= high:
            share = math.log(shots / low) / math.log(high / low)
            return steps[low] + share * (steps[high] - steps[low])
    return steps[known[-1]]


def steps_for(shots: Tensor, steps: Mapping[int, float]) -> Tensor:
    """ε of each class: numbers of shots ``[...]`` → ``[...]``."""
    values, index = shots.unique(return_inverse=True)
    table = torch.tensor([step_for(k, steps) for k in values.tolist()], device=shots.device)
    return table[index]
