"""Strays among the examples of a class: how little an example may agree with the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from wdae.calibration.unknown import RATE, STRAYS, Detector, Seen

_MOST, _PICTURES = 20_000, 60  # pictures in all, and of a class at least where there are so many
_CLASSES, _DRAWS = 200, 3000  # classes that play, and draws of examples of them
_AT_LEAST, _AT_MOST, _STEPS = 15, 100, 100  # such draws of each class, limits that are tried


def stray_limits(
    pools: Sequence[tuple[Sequence[Tensor], Detector]], seed: int
) -> tuple[dict[int, float], dict[str, float]]:
    """How little an example agrees with the others in a sound class, by their number; strays noticed by that.

    Args:
        pools: classes, each its features ``[k, D]``, and a detector that does not know them.
    """
    generator = torch.Generator().manual_seed(seed)
    count = min(_CLASSES, sum(len(classes) for classes, _ in pools))
    each = min(_AT_MOST, max(_AT_LEAST, _DRAWS // max(1, count)))
    played = []
    for classes, made in pools:
        drawn = torch.randperm(len(classes), generator=generator)[: -(-count // len(pools))].tolist()
        played.append((made, [made.seen(few(classes[c], _MOST // count)) for c in drawn]))
    found, figures = {}, {}
    for size in STRAYS:
        lowest, odd = [], []
        for made, drawn_classes in played:
            able = [some for some in drawn_classes if len(some.vectors) >= size]
            for c, mine in enumerate(able):
                if len(able) < 2:
                    continue
                others = torch.randint(len(able) - 1, (each,), generator=generator)
                strange = [able[o + (o >= c)] for o in others.tolist()]
                rows = [torch.randint(len(some.vectors), (1,), generator=generator) for some in strange]
                sound = Seen.stacked([mine.some(some) for some in _groups(mine, size, each, generator)])
                strays = Seen.stacked([some.some(row) for some, row in zip(strange, rows, strict=True)])
                mixed = (
                    torch.cat([x[:, 1:], y], 1) for x, y in zip(sound.parts(), strays.parts(), strict=True)
                )
                lowest.append(made.agreement_of(sound).amin(1))
                odd.append(made.agreement_of(Seen(*mixed))[:, -1])
        if not lowest:
            return {}, {}
        found[size] = _limit(torch.stack(lowest))
        figures[f"strays_{size}"] = float((torch.stack(odd) < found[size]).double().mean())
    return found, figures


def _groups(some: Seen, size: int, count: int, generator: torch.Generator) -> list[Tensor]:
    """Rows of so many groups of pictures of a class, each picture in about as many of them."""
    rows: list[Tensor] = []
    while len(rows) < count:
        order = torch.randperm(len(some.vectors), generator=generator)
        rows += order[: len(order) // size * size].view(-1, size)
    return rows[:count]


def _limit(lowest: Tensor) -> float:
    """The agreement below which an example is out of place, from the lowest of drawn ones ``[C, draws]``.

    Sound classes differ in how well their pictures agree, and few play here: with a confidence of 1 - RATE
    no more than RATE of other classes are warned about, by the error of the mean over the classes.
    """
    candidates = lowest.flatten().quantile(torch.linspace(0, RATE, _STEPS))
    rates = (lowest < candidates.view(-1, 1, 1)).double().mean(2)
    error = rates.std(1) / math.sqrt(len(lowest)) if len(lowest) > 1 else 0
    able = rates.mean(1) + NormalDist().inv_cdf(1 - RATE) * error <= RATE
    return float(candidates[able][-1])


def few(rows: Tensor, most: int = _PICTURES) -> Tensor:
    """Some pictures of a class, evenly over those there are: about so many, if there are."""
    return rows[:: max(1, len(rows) // max(_PICTURES, most))]
