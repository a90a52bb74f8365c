"""What the files of trained methods say beside their weights: read without torch, for what needs no more."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wdae.storage.records import MAX_CLASSES, Count, Info, Record, Size, Text

SHOTS = (1, 2, 5, 10, 20)
"""Numbers of shots of pseudo-novel classes that a model is calibrated for."""
QUANTILES = 201
"""Points of a curve of quantiles."""
WAYS = 5
"""Pseudo-novel classes at once; of fewer novel classes a smaller share of images is expected."""
RATE = 0.05
"""The rate of false alarms, and of warnings, that figures are measured at."""
RISKS = (0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)
"""Shares of pictures whose class may be missing from its set, for which thresholds are kept."""

Share = Annotated[float, Field(gt=0, lt=1)]
Chances = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=len(RISKS), max_length=len(RISKS))
]
"""The least probability of a class in a set, for each of RISKS."""


class CalibrationRecord(Record):
    """A calibration on disk."""

    gain: float
    slopes: dict[Size, float]
    offsets: dict[Size, float]
    familiarity: tuple[float, ...]
    figures: Annotated[dict[Text, float], Field(max_length=1_000)]
    novel_share: Share | None
    protecting: dict[Size, Share] = Field(default_factory=dict)
    sets: Annotated[dict[Count, tuple[Chances, ...]], Field(max_length=100)] = Field(default_factory=dict)


class DenoiserRecord(Record):
    """The sizes of a denoiser on disk."""

    dim: Size
    hidden: Size
    n_layers: Annotated[int, Field(ge=1, le=64)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    kind: Literal["gnn", "mlp"]


class SpaceRecord(Record):
    """The numbers of a feature space on disk."""

    power: float
    scale: float
    shrink: Annotated[float, Field(gt=0, le=1)] = 1.0


class PosteriorRecord(Record):
    """The numbers of a posterior on disk."""

    n_base: Annotated[int, Field(ge=0, le=MAX_CLASSES)]
    strength: Annotated[float, Field(gt=0)]
    share: Annotated[float, Field(gt=0)] = 0.1
    intercepts: bool = False
    fewest: Annotated[int, Field(ge=1)] = 10
    as_counted: bool = False
    eased: bool = False


class WdaeState(Record):
    """What the file of a wDAE says beside its weights."""

    kind: Literal["wdae"]
    name: Text
    denoiser: DenoiserRecord
    scale: float | None
    steps: tuple[tuple[int, float], ...]
    n_steps: Annotated[int, Field(ge=0, le=1_000)]
    n_neighbours: Annotated[int, Field(ge=1, le=MAX_CLASSES)]
    inverse_temperature: float
    balance: CalibrationRecord | None = None
    refine_base: bool = True
    space: SpaceRecord | None = None
    posterior: PosteriorRecord | None = None


class EstimateState(Record):
    """What the file of the initial estimate says: how its scores are balanced."""

    kind: Literal["initial-estimate"]
    name: Text
    balance: CalibrationRecord
    posterior: PosteriorRecord | None = None


class LearnedState(Record):
    """What the file of another learned method says beside its weights."""

    kind: Literal["method"]
    method: Text
    name: Text
    dim: Size
    n_base: Annotated[int, Field(ge=0, le=MAX_CLASSES)]
    options: Info
    balance: CalibrationRecord | None = None
    start_kept: bool = False


def interpolate(curve: tuple[float, ...], share: float) -> float:
    """The value of an evenly spaced curve at a share of its length."""
    place = share * (len(curve) - 1)
    low = min(int(place), len(curve) - 2) if len(curve) > 1 else 0
    high = min(low + 1, len(curve) - 1)
    return curve[low] + (place - low) * (curve[high] - curve[low])
