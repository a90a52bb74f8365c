"""Honest confidence: temperature, the balance of base and added classes, and when to say "unknown".

A class's score is ``a · γ cos(z, w) + b``. For base classes ``a`` is one inverse temperature, found on
held-out images, and ``b`` is 0. An added class has been seen a few times only: its weight fits less well
than a learned one, the less so the fewer its shots. So it gets ``a`` and ``b`` of its number of shots, found
on classes that play new (never on the classes that a user adds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.errors import RecipeError
from wdae.methods.wdae import step_for

QUANTILES = 201


@dataclass(frozen=True)
class Calibration:
    """How cosines become scores whose softmax is a probability.

    Attributes:
        gain: of base classes, γ / temperature.
        slopes, offsets: of added classes, by number of shots; ``slope · gain · cos + offset``.
        familiarity: quantiles of the largest score on held-out base images, evenly spaced from 0 to 1;
            empty where there were none.
        figures: how well it works, on images that it was not found on.
    """

    gain: float
    slopes: Mapping[int, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)
    familiarity: tuple[float, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def rows(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and offset ``[n]`` of added classes with these numbers of shots ``[n]``."""
        slopes = [step_for(k, self.slopes) for k in shots.tolist()]
        offsets = [step_for(k, self.offsets) if self.offsets else 0.0 for k in shots.tolist()]
        return self.gain * torch.tensor(slopes), torch.tensor(offsets)

    def threshold(self, false_alarm_rate: float) -> float:
        """The largest score below which a picture is called unknown.

        Args:
            false_alarm_rate: the share of base pictures that may be called so wrongly.
        """
        if not 0 <= false_alarm_rate <= 1:
            raise RecipeError(f"a false-alarm rate lies between 0 and 1, got {false_alarm_rate}")
        if not self.familiarity:
            return -float("inf")
        return interpolate(self.familiarity, false_alarm_rate)

    def as_json(self) -> dict[str, Any]:
        """For a model's manifest; numbers of shots become text there."""
        value = asdict(self)
        for key in ("slopes", "offsets"):
            value[key] = {str(k): v for k, v in value[key].items()}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Calibration:
        """From a manifest."""
        maps = {key: {int(k): float(v) for k, v in value[key].items()} for key in ("slopes", "offsets")}
        return cls(value["gain"], **maps, familiarity=tuple(value["familiarity"]), figures=value["figures"])


def interpolate(curve: tuple[float, ...], share: float) -> float:
    """The value of an evenly spaced curve at a share of its length."""
    place = share * (len(curve) - 1)
    low = min(int(place), len(curve) - 2) if len(curve) > 1 else 0
    high = min(low + 1, len(curve) - 1)
    return curve[low] + (place - low) * (curve[high] - curve[low])


def quantiles(values: Tensor) -> tuple[float, ...]:
    """The quantiles 0, 1/200, ..., 1 of some values."""
    if not len(values):
        return ()
    found = torch.quantile(values.double(), torch.linspace(0, 1, QUANTILES).double())
    return tuple(round(value, 5) for value in found.tolist())


def fit_gain(cosines: Tensor, labels: Tensor, start: float) -> float:
    """The gain that makes held-out images' labels most probable: cosines ``[M, N]``, labels ``[M]``."""
    log = torch.zeros((), dtype=torch.float64, requires_grad=True)
    cosines = cosines.double()

    def loss() -> Tensor:
        return F.cross_entropy(start * log.exp() * cosines, labels)

    _minimise([log], loss)
    return start * float(log.detach().clamp(-3, 3).exp())


def fit_balance(base: Tensor, novel: Tensor, labels: Tensor) -> tuple[float, float]:
    """Slope and offset of classes that play new, such that labels become most probable.

    Shapes: base ``[M, N]`` and novel ``[M, n]``: scores with the gain of base classes; labels ``[M]``,
    base first. Queries of both kinds count half each.
    """
    is_novel = labels >= base.shape[1]
    if not bool(is_novel.any()) or not bool((~is_novel).any()):
        return 1.0, 0.0
    share = is_novel.double().mean()
    weight = torch.where(is_novel, 0.5 / share, 0.5 / (1 - share))
    log_slope = torch.zeros((), dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    base, novel = base.double(), novel.double()
    # All base scores enter a query's loss as one number, and as that of its own class.
    base_mass = base.logsumexp(1)
    own = base.gather(1, labels.clamp(max=base.shape[1] - 1).unsqueeze(1))[:, 0]
    place = (labels - base.shape[1]).clamp(min=0).unsqueeze(1)

    def loss() -> Tensor:
        scores = log_slope.exp() * novel + offset
        wanted = torch.where(is_novel, scores.gather(1, place)[:, 0], own)
        mass = torch.logaddexp(base_mass, scores.logsumexp(1))
        return (weight * (mass - wanted)).mean()

    _minimise([log_slope, offset], loss)
    return float(log_slope.detach().clamp(-2, 2).exp()), float(offset.detach())


def calibration_error(probabilities: Tensor, labels: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error: |confidence − accuracy| over bins of confidence, weighted by their size."""
    confidence, predicted = probabilities.max(1)
    right = (predicted == labels).double()
    place = (confidence * n_bins).long().clamp(max=n_bins - 1)
    gap = torch.zeros(n_bins, dtype=torch.float64).index_add_(0, place, confidence.double() - right)
    return float(gap.abs().sum() / len(labels))


def area_under_roc(known: Tensor, unknown: Tensor) -> float:
    """The probability that a known picture's score exceeds an unknown one's (ties count half)."""
    values = torch.cat([known, unknown]).double()
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2.0)[inverse]  # mean rank of ties, from 1
    n, m = len(known), len(unknown)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def _minimise(parameters: list[Tensor], loss: Any) -> None:
    optimiser = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value: Tensor = loss()
        value.backward()
        return value

    optimiser.step(closure)
