"""Trained or as it began: which of the two a comparison measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wdae.evaluation.results import Estimate, Result, paired
from wdae.methods import Method

M = TypeVar("M", bound=Method)


def better_of(trained: M, start: M, measure: Callable[[Method], Result]) -> tuple[M, Estimate]:
    """The trained method where it beats its start by more than chance, else the start; and the paired gain.

    Training on base classes can cost accuracy on others, and the best of several states on the same few
    validation episodes is best by luck in part.

    Args:
        trained, start: what to choose from.
        measure: on validation classes, the same episodes for both, others than training has chosen on.
    """
    gain = paired(measure(trained), measure(start), "novel")
    return (trained if gain.mean > 0 and gain.excludes_zero else start), gain
