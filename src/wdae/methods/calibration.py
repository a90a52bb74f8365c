"""Honest confidence: temperature, the balance of base and added classes, and when to say "unknown".

A class's score is ``a · γ cos(z, w) + b``. For base classes ``a`` is one inverse temperature, found on
held-out images, and ``b`` is 0. An added class has been seen a few times only: its weight fits less well
than a learned one, the less so the fewer its shots. So it gets ``a`` and ``b`` of its number of shots, found
on classes that play new (never on the classes that a user adds), and a prior: by default half of all pictures
are expected to be of added classes, as in the paper's evaluation, but no more than a tenth of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.errors import RecipeError
from wdae.methods.shots import step_for

QUANTILES = 201
UNUSED = -1e4
_FARTHEST = 50.0  # offsets looked at
REHEARSED = 5
"""Classes that play new at once; below so many, the share of added classes shrinks with their number."""


@dataclass(frozen=True)
class Calibration:
    """How cosines become scores whose softmax is a probability.

    Attributes:
        gain: of base classes, γ / temperature.
        slopes, offsets: of added classes, by number of shots; ``slope · gain · cos + offset``, for classes
            that are all equally likely.
        novel_share: the share of pictures expected to be of added classes, all together.
        familiarity: quantiles of the largest score on held-out base images, evenly spaced from 0 to 1;
            empty where there were none.
        figures: how well it works, on images that it was not found on.
    """

    gain: float
    slopes: Mapping[int, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)
    familiarity: tuple[float, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    novel_share: float = 0.5

    def rows(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and offset ``[n]`` of added classes with these numbers of shots ``[n]``."""
        slopes = [step_for(k, self.slopes) for k in shots.tolist()]
        offsets = [step_for(k, self.offsets) if self.offsets else 0.0 for k in shots.tolist()]
        return self.gain * torch.tensor(slopes), torch.tensor(offsets)

    def prior(self, n_base: int, n_added: int) -> float:
        """Log of how much likelier an added class is than a base class; 0 where nothing was rehearsed.

        >>> Calibration(1.0, offsets={1: 0.0}).prior(n_base=10, n_added=10)
        0.0
        """
        if not self.offsets or not n_added:
            return 0.0
        share = min(self.novel_share, self.novel_share * n_added / REHEARSED)
        return math.log(share / n_added * n_base / (1 - share))

    def threshold(self, false_alarm_rate: float) -> float:
        """The largest score below which a picture is called unknown.

        Args:
            false_alarm_rate: the share of base pictures that may be called so wrongly; 0: none ever is.
        """
        if not 0 <= false_alarm_rate <= 1:
            raise RecipeError(f"a false-alarm rate lies between 0 and 1, got {false_alarm_rate}")
        if not self.familiarity or false_alarm_rate == 0:
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
        return cls(
            value["gain"],
            **maps,
            familiarity=tuple(value["familiarity"]),
            figures=value["figures"],
            novel_share=value["novel_share"],
        )


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
    """The gain that makes held-out images' labels most probable: cosines ``[M, N]``, labels ``[M]``.

    Labels are smoothed by half a count in M + 1, or images that are all told apart would ask for certainty.
    """
    log = torch.zeros((), dtype=torch.float64, requires_grad=True)
    cosines = cosines.double()
    smoothing = 0.5 / (len(labels) + 1)

    def loss() -> Tensor:
        return F.cross_entropy(start * log.exp() * cosines, labels, label_smoothing=smoothing)

    _minimise([log], loss)
    return start * float(log.detach().clamp(-3, 3).exp())


@dataclass(frozen=True)
class Played:
    """Scores of M queries where some classes play new, base scores summed up to what matters of them.

    Shapes: mass (log of the sum of base scores' exponentials), own (score of the query's base class), best
    (highest base score), best_right ``[M]``; novel ``[M, n]`` with the gain of base classes, very low where a
    column is unused; place ``[M]``: the query's column of ``novel``, -1 for a base class; prior ``[M]``: log
    of how much likelier a class that plays new is than a base class.
    """

    mass: Tensor
    own: Tensor
    best: Tensor
    best_right: Tensor
    novel: Tensor
    place: Tensor
    prior: Tensor

    @classmethod
    def of(cls, base: Tensor, novel: Tensor, labels: Tensor, width: int | None = None) -> Played:
        """From scores ``[M, N]`` and ``[M, n]`` and labels ``[M]``, base first.

        Half of the queries are of either kind, so that a new class is N / n times as likely as a base class.
        """
        n_base, n = base.shape[1], novel.shape[1]
        best = base.max(1)
        own = base.gather(1, labels.clamp(max=n_base - 1).unsqueeze(1))[:, 0].double()
        novel = F.pad(novel, (0, (width or n) - n), value=UNUSED)
        place = torch.where(labels >= n_base, labels - n_base, -1)
        prior = own.new_full((len(labels),), math.log(n_base / n))
        right = best.indices == labels
        return cls(base.double().logsumexp(1), own, best.values, right, novel.double(), place, prior)

    @classmethod
    def joined(cls, parts: Sequence[Played]) -> Played:
        """Several as one."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def _scores(self, slope: Tensor | float, offset: Tensor | float) -> tuple[Tensor, Tensor]:
        scores = slope * self.novel + offset + self.prior.unsqueeze(1)
        return scores, torch.logaddexp(self.mass, scores.logsumexp(1))

    def loss(self, slope: Tensor | float, offset: Tensor | float) -> Tensor:
        """Mean of minus the log probability of the true class; queries of both kinds count half each."""
        scores, mass = self._scores(slope, offset)
        is_novel = self.place >= 0
        wanted = torch.where(is_novel, scores.gather(1, self.place.clamp(min=0).unsqueeze(1))[:, 0], self.own)
        share = is_novel.double().mean()
        return (torch.where(is_novel, 0.5 / share, 0.5 / (1 - share)) * (mass - wanted)).mean()

    def error(self, slope: float, offset: float) -> float:
        """Expected calibration error."""
        scores, mass = self._scores(slope, offset)
        chosen = torch.maximum(scores.amax(1), self.best)
        return binned_error((chosen - mass).exp(), self.right(slope, offset))

    def right(self, slope: float, offset: float) -> Tensor:
        """Which queries find their class among base and new classes ``[M]``."""
        top = self.novel.max(1)
        won = slope * top.values + offset + self.prior > self.best
        return torch.where(won, top.indices == self.place, self.best_right)

    def accuracy(self, slope: float, offset: float) -> float:
        """Accuracy among base and new classes; queries of both kinds count half each."""
        right, is_novel = self.right(slope, offset).double(), self.place >= 0
        return 0.5 * float(right[is_novel].mean() + right[~is_novel].mean())


def fit_balance(played: Played) -> tuple[float, float]:
    """Slope and offset of classes that play new, such that true classes become most probable.

    A weak prior keeps both finite where the queries are all told apart.
    """
    is_novel = played.place >= 0
    if not bool(is_novel.any()) or not bool((~is_novel).any()):
        return 1.0, 0.0
    log_slope = torch.zeros((), dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        unlikely = log_slope.square() + (offset / 3).square()
        return played.loss(log_slope.exp(), offset) + 0.005 * unlikely

    _minimise([log_slope, offset], loss)
    return float(log_slope.detach().exp()), float(offset.detach())


def fit_offset(played: Played, slope: float = 1.0) -> float:
    """The likeliest offset of classes that play new, for a given slope.

    At the maximum of the likelihood the queries' probability of being new, on average, is the share of those
    that are: the constant that puts both kinds of classes on a par. Only the log odds of new against base
    matter, and the average rises with the offset: Newton's steps, kept within halves of an interval.
    """
    is_novel = played.place >= 0
    if not bool(is_novel.any()) or not bool((~is_novel).any()):
        return 0.0
    odds = (slope * played.novel).logsumexp(1) + played.prior - played.mass
    share = is_novel.double().mean()
    weight = torch.where(is_novel, 0.5 / share, 0.5 / (1 - share)) / len(odds)
    low, high, offset = -_FARTHEST, _FARTHEST, 0.0
    for _ in range(60):
        chance = torch.sigmoid(odds + offset)
        excess = float(weight @ chance) - 0.5
        low, high = (low, offset) if excess > 0 else (offset, high)
        ahead = offset - excess / max(float(weight @ (chance * (1 - chance))), 1e-12)
        last, offset = offset, ahead if low < ahead < high else (low + high) / 2
        if abs(offset - last) < 1e-6:
            break
    return offset


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error of probabilities ``[M, C]`` for labels ``[M]``."""
    confidence, predicted = probabilities.max(1)
    return binned_error(confidence, predicted == labels)


def binned_error(confidence: Tensor, right: Tensor, n_bins: int = 15) -> float:
    """|confidence − accuracy| over bins of confidence, weighted by their size."""
    place = (confidence * n_bins).long().clamp(0, n_bins - 1)
    gap = torch.zeros(n_bins, dtype=torch.float64)
    gap.index_add_(0, place, confidence.double() - right.double())
    return float(gap.abs().sum() / len(right))


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
