"""What resembles no class: told from pictures of known classes at a chosen rate of false alarms.

A vector is as familiar as its likeliest class makes it (:class:`wdae.nn.plda.PLDA`): the share of pictures of
known classes that are less like their own. Base classes are judged by held-out pictures. An added class has a
few examples only; it is judged by pseudo-novel classes of as many shots. A second test knows pictures of
nothing: noise, text, flat colours and screens that were drawn by code. Where the backbone has a classifier of
its own, what it finds in a picture counts too (:mod:`wdae.calibration.background`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wdae.calibration.background import Background, alike, explained, profile
from wdae.calibration.familiarity import OUTLIER_SHARE, ROUNDING, check_kept, ends
from wdae.calibration.familiarity import STEEPEST as STEEPEST
from wdae.calibration.familiarity import STRAYS as STRAYS
from wdae.methods.calibration import WAYS, interpolate, step_for
from wdae.methods.records import RATE as RATE
from wdae.nn.cosine import unit
from wdae.nn.plda import PLDA

SHARPENED_FROM = 3
"""Number of examples from which profiles of added classes are sharpened; chosen on validation classes."""
ALIKE = 2.0
"""What the backbone's own classes count in agreement, beside what they count in familiarity."""
Curve = tuple[float, ...]
"""Quantiles, evenly spaced from 0 to 1."""


@dataclass(frozen=True)
class AddedClasses:
    """How pictures of added classes with a number of shots behave, from pseudo-novel classes.

    Attributes:
        own: quantiles of the ratio of their pictures to the likeliest of them.
        base, added: quantiles of familiarity, of base pictures and of their own, with so many added.
        caught: share of pictures of other pseudo-novel classes that is called unknown, at RATE; NaN where
            there are no others.
        exponent: of the share of pictures less like their own, so that base and added classes have as many
            false alarms.
    """

    own: Curve
    base: Curve
    added: Curve
    caught: float
    exponent: float

    def familiar(self, ratios: Tensor) -> Tensor:
        """How familiar an added class makes what has these ratios to it ``[M]``."""
        return share_below(self.own, ratios).pow(self.exponent)


@dataclass(frozen=True, eq=False)
class Seen:
    """Pictures as a detector sees them: vectors ``[M, R]``, background classes in them ``[M, B]``."""

    vectors: Tensor
    chances: Tensor

    def some(self, rows: Tensor | slice) -> Seen:
        """Some of the pictures."""
        return Seen(self.vectors[rows], self.chances[rows])

    def parts(self) -> tuple[Tensor, Tensor]:
        """Vectors and background classes."""
        return self.vectors, self.chances

    @classmethod
    def stacked(cls, classes: Sequence[Seen]) -> Seen:
        """Classes of as many pictures each: vectors ``[C, k, R]``, background classes ``[C, k, B]``."""
        return cls(*(torch.stack(same) for same in zip(*(one.parts() for one in classes), strict=True)))


@dataclass(frozen=True, eq=False)
class Added:
    """Added classes: means ``[n, R]`` of examples, how many ``[n]``, how ordinary pictures must be ``[n]``.

    Their profiles are ``[n, B]``: which background classes they are.
    """

    means: Tensor
    shots: Tensor
    ordinary: Tensor
    profiles: Tensor


@dataclass(frozen=True, eq=False)
class Detector:
    """Tells what resembles no class.

    Attributes:
        means, counts: of the base classes ``[N, R]``, ``[N]``.
        known: quantiles of the ratio of held-out base pictures to their likeliest base class.
        alone: quantiles of their familiarity while nothing is added.
        by_shots: of added classes, by number of shots.
        strays: by number of examples of a class, the agreement of an example with the others below which it
            looks out of place; at most the least of one sound class in twenty lies lower.
        outlier: direction of pictures of nothing ``[D]``; None where the model was learned from features.
        outlying: quantiles of held-out base pictures along it, largest first.
        spread: how much less ordinary pictures of an added class may be than its examples are on average; 0
            in files of before: no less than the least of them.
        background: the backbone's own classes, where it has any.
        profiles: which of them each base class is ``[N, B]``, by its pictures.
        strength: what they count beside ratios.
        sharpness: of profiles (:func:`wdae.calibration.background.sharpened`).
        sharpened_from: number of examples of an added class from which its profile is sharpened: what the
            background takes a single picture for may be wrong, and its second guess right.
        figures: shares caught at RATE, on classes and pictures that nothing was learned from.
    """

    plda: PLDA
    means: Tensor
    counts: Tensor
    known: Curve
    alone: Curve
    by_shots: Mapping[int, AddedClasses] = field(default_factory=dict)
    strays: Mapping[int, float] = field(default_factory=dict)
    outlier: Tensor | None = None
    outlying: Curve = ()
    spread: float = 0.0
    background: Background | None = None
    profiles: Tensor | None = None
    strength: float = 0.0
    sharpness: float = 0.0
    sharpened_from: int = SHARPENED_FROM
    figures: Mapping[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def added(self, groups: Sequence[Tensor]) -> Added:
        """Added classes from the features ``[k, D]`` of each."""
        if not groups:
            return Added(self.means[:0], torch.zeros(0), torch.zeros(0), torch.zeros(0, 0))
        means, profiles = zip(*(self.class_of(self.seen(some)) for some in groups), strict=True)
        return Added(
            torch.stack(means),
            torch.tensor([len(some) for some in groups]),
            torch.stack([self.least_ordinary(self.ordinary(some)) for some in groups]),
            torch.stack(profiles),
        )

    def seen(self, features: Tensor) -> Seen:
        """Features ``[M, D]`` as classes are compared with them."""
        chances = features.new_zeros(len(features), 0)
        if self.background is not None:
            chances = self.background.chances(features)
        return Seen(self.plda.coordinates(features), chances)

    def class_of(self, examples: Seen) -> tuple[Tensor, Tensor]:
        """An added class of these examples: its mean vector ``[R]`` and its profile ``[B]``."""
        sharpness = self.sharpness if len(examples.vectors) >= self.sharpened_from else 0.0
        return examples.vectors.mean(0), profile(examples.chances, sharpness)

    def ratios(self, seen: Seen, means: Tensor, counts: Tensor, profiles: Tensor | None) -> Tensor:
        """Log of how much likelier pictures are in each class than anywhere, ``[M, C]``.

        What the background finds beyond all of these classes speaks against each of them.
        """
        found = self.plda.ratios(seen.vectors, means, counts)
        if self.background is None or profiles is None:
            return found
        return found + self.strength * explained(seen.chances, profiles.amax(0, keepdim=True))

    def base_ratios(self, seen: Seen, base: Tensor | None = None) -> Tensor:
        """The same of base classes, all or some ``[M, N]``."""
        rows = slice(None) if base is None else base
        profiles = None if self.profiles is None else self.profiles[rows]
        return self.ratios(seen, self.means[rows], self.counts[rows], profiles)

    @torch.no_grad()
    def familiarity(self, features: Tensor, added: Added, base: Tensor | None = None) -> Tensor:
        """How familiar each of the features ``[M, D]`` is, at most 1, ``[M]``; of nothing, it is below 0.

        Args:
            base: the base classes that come into question; all by default.
        """
        seen = self.seen(features)
        as_base = torch.zeros(len(features))
        if base is None or len(base):
            as_base = share_below(self.known, self.base_ratios(seen, base).amax(1))
        as_added, allowed = torch.zeros(len(features)), torch.ones(len(features))
        if len(added.shots) and self.by_shots:
            ratios = self.ratios(seen, added.means, added.shots, added.profiles)
            played = [self.by_shots[self.nearest(k)] for k in added.shots.tolist()]
            as_added, likest = torch.stack(
                [one.familiar(ratios[:, i]) for i, one in enumerate(played)], 1
            ).max(1)
            allowed = added.ordinary[likest]
        return joined(as_base, as_added, self.ordinary(features), allowed)

    @torch.no_grad()
    def agreement(self, features: Tensor) -> Tensor:
        """How well each example ``[k, D]`` of a class agrees with the others: as a ratio ``[k]``.

        Where the backbone has classes of its own, it counts whether they are of the same one of these.
        """
        return self.agreement_of(self.seen(features))

    def agreement_of(self, seen: Seen) -> Tensor:
        """The same of pictures that were seen, of one class or of several with as many: ``[..., k]``."""
        k = seen.vectors.shape[-2]
        others, profiles = (
            (x.sum(-2, keepdim=True) - x) / max(1, k - 1) for x in (seen.vectors, seen.chances)
        )
        found = self.plda.own_ratios(seen.vectors, others, k - 1)
        if self.background is None:
            return found
        return found + ALIKE * self.strength * alike(seen.chances, profiles)

    def stray(self, shots: int) -> float:
        """The agreement below which one of so many examples looks out of place."""
        if shots < min(STRAYS) or not self.strays:
            return -math.inf
        return step_for(shots, self.strays)

    def ordinary(self, features: Tensor) -> Tensor:
        """The share of base pictures that are more like pictures of nothing, ``[M]``; 1 without that test.

        Below the least ordinary base picture it goes on below 0, in deviations of base pictures: a share
        cannot tell pictures of nothing from unusual ones of an added class.
        """
        if self.outlier is None:
            return torch.ones(len(features))
        along = -(unit(features) @ self.outlier)
        least, unit_of = ends(self.outlying)
        return share_below(self.outlying, along) + ((along - least) / unit_of).clamp(max=0)

    def least_ordinary(self, ordinary: Tensor) -> Tensor:
        """How ordinary a picture must be to pass as one of an added class, by its examples ``[k]``."""
        return ordinary.mean() - self.spread if self.spread else ordinary.min()

    def threshold(self, false_alarms: float, shots: Sequence[int]) -> float:
        """The familiarity below which a picture is called unknown, with added classes of so many shots.

        False alarms are as many as asked for among base pictures or among those of added classes, whichever
        has more; with more than WAYS added classes they are fewer.
        """
        if false_alarms == 0:
            return -math.inf
        alone = interpolate(self.alone, false_alarms)
        if not shots or not self.by_shots:
            return alone
        played = [self.by_shots[self.nearest(k)] for k in set(shots)]
        joint = min(interpolate(curve, false_alarms) for one in played for curve in (one.base, one.added))
        share = min(1.0, len(shots) / WAYS)
        return alone + share * (joint - alone)

    @property
    def worth(self) -> float:
        """The share of unseen classes that is caught, summed over numbers of shots."""
        numbers = [f"caught_{shots}" for shots in self.by_shots]
        return sum(value for key, value in self.figures.items() if key in ("caught", *numbers))

    def tensors(self) -> dict[str, Tensor]:
        """For a model's file; figures belong to the balance."""
        plda, played = self.plda, [self.by_shots[k] for k in sorted(self.by_shots)]
        found = {
            "centre": plda.centre,
            "projection": plda.projection.half(),
            "widths": plda.widths,
            "between": plda.between,
            "means": self.means.half(),
            "counts": self.counts,
            "power": torch.tensor(plda.power),
            "equal_length": torch.tensor(plda.equal_length),
            "known": torch.tensor([self.known]),
            "alone": torch.tensor([self.alone]),
        }
        if played:
            found["shots"] = torch.tensor(sorted(self.by_shots))
            found |= {k: torch.tensor([getattr(one, k) for one in played]) for k in ("own", "base", "added")}
            found |= {k: torch.tensor([getattr(one, k) for one in played]) for k in ("caught", "exponent")}
        if self.background is not None and self.profiles is not None:
            found |= {
                "background": self.background.weight.half(),
                "background_bias": self.background.bias,
                "profiles": self.profiles,
                "strength": torch.tensor(self.strength),
                "sharpness": torch.tensor(self.sharpness),
                "sharpened_from": torch.tensor(self.sharpened_from),
            }
        if self.strays:
            found[_strays_of(found)] = torch.tensor([self.strays[k] for k in STRAYS])
        if self.outlier is not None:
            found |= {"outlier": self.outlier, "outlying": torch.tensor([self.outlying])}
            found["spread"] = torch.tensor(self.spread)
        return found

    @classmethod
    def of_tensors(cls, kept: Mapping[str, Tensor], n_base: int, dim: int) -> Detector:
        """From a model's file, checked."""
        check_kept({name: tensor.numpy() for name, tensor in kept.items()}, n_base, dim)
        by_shots, strays = {}, _strays_of(kept)
        if "shots" in kept:
            curves = (map(tuple, kept[name].tolist()) for name in ("own", "base", "added"))
            numbers = (kept[name].tolist() for name in ("caught", "exponent"))
            rows = zip(*curves, *numbers, strict=True)
            by_shots = {k: AddedClasses(*row) for k, row in zip(kept["shots"].tolist(), rows, strict=True)}
        return cls(
            PLDA(
                **{name: kept[name].float() for name in ("centre", "projection", "widths", "between")},
                power=float(kept["power"]),
                equal_length=bool(kept["equal_length"]),
            ),
            kept["means"].float(),
            kept["counts"],
            tuple(kept["known"][0].tolist()),
            tuple(kept["alone"][0].tolist()),
            by_shots,
            dict(zip(STRAYS, kept[strays].tolist(), strict=True)) if strays in kept else {},
            kept["outlier"].float() if "outlier" in kept else None,
            tuple(kept["outlying"][0].tolist()) if "outlier" in kept else (),
            float(kept.get("spread", 0)),
            **_background(kept),
        )

    def nearest(self, shots: int) -> int:
        """The number of shots with pseudo-novel classes next to this one."""
        return min(self.by_shots, key=lambda k: abs(math.log(k / shots)))


def _strays_of(kept: Mapping[str, Tensor]) -> str:
    """Where a file has the limits of agreement; with a background they were once those of another measure."""
    return "strays_alike" if "background" in kept else "strays"


def _background(kept: Mapping[str, Tensor]) -> dict[str, Any]:
    if "background" not in kept:
        return {}
    background = Background(kept["background"].float(), kept["background_bias"].float())
    profiles, strength = kept["profiles"].float(), float(kept["strength"])
    sharpness = float(kept["sharpness"]) if "sharpness" in kept else 0.0
    found = {"background": background, "profiles": profiles, "strength": strength, "sharpness": sharpness}
    return {**found, "sharpened_from": int(kept.get("sharpened_from", 1))}


def joined(as_base: Tensor, as_added: Tensor, ordinary: Tensor, allowed: Tensor) -> Tensor:
    """Familiarity: to the likelier kind of class, and no picture of nothing ``[M]``.

    An added class may be one of text or of plain colours: what is hardly less ordinary than its examples
    passes.
    """
    passes = (as_added >= as_base) & (ordinary >= allowed - ROUNDING)
    ordinary = torch.where(passes, torch.ones_like(ordinary), ordinary)
    return torch.minimum(torch.maximum(as_base, as_added), ordinary / OUTLIER_SHARE)


def share_below(curve: Curve, values: Tensor) -> Tensor:
    """The share of a distribution, given by its quantiles, below each of some values ``[M]``.

    >>> share_below((0.0, 10.0, 20.0), torch.tensor([-1.0, 5.0, 20.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    points = torch.tensor(curve, dtype=values.dtype)
    high = torch.searchsorted(points, values.contiguous(), right=True).clamp(1, len(points) - 1)
    low = high - 1
    step = (points[high] - points[low]).clamp(min=1e-12)
    return ((low + ((values - points[low]) / step).clamp(0, 1)) / (len(points) - 1)).float()
