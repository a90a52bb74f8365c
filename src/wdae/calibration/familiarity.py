"""What :mod:`wdae.calibration.unknown` has found, at work in numpy: whether a picture resembles no class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.methods.records import QUANTILES, SHOTS, WAYS, interpolate

Array = npt.NDArray[Any]
OUTLIER_SHARE = 0.1
"""Of all false alarms, the share that may come of the test for pictures of nothing."""
ROUNDING = 1e-4
"""By how much an example may seem less ordinary than itself: rounding differs by machine and batch."""
STRAYS = (3, 5, 10)
"""Numbers of examples among which one may be a stray."""
STEEPEST = 3.0
"""Log of the largest exponent of :class:`wdae.calibration.unknown.AddedClasses`."""
UNSURE = 0.1
"""A background class that so many of the pictures of a class are taken for is half explained by it."""
LEAST_SHARE = 1e-6
"""The least of a picture that is left unexplained, and explained."""
LEAST_ALIKE = 1e-9
"""The least chance that two pictures are of one background class."""
MOST_BACKGROUND = 25_000
"""Background classes that a file may hold."""
_FARTHEST = 1e6  # ratios that a file may hold
_STEEPEST_PROFILE = 100.0
_SMALLEST_RANGE = 1e-6


@dataclass(frozen=True, eq=False)
class Familiarity:
    """A :class:`wdae.calibration.unknown.Detector` with the classes that were added, for vectors of numpy.

    Attributes:
        kept: the detector's arrays as a model's file has them.
        means, counts: of the base classes in question ``[N, R]``, ``[N]``.
        added, shots, ordinary: of the added ones: means ``[n, R]``, numbers of examples ``[n]``, how ordinary
            their pictures are at least ``[n]``.
        base_profiles, profiles: means of the background classes in them ``[N, B]``, ``[n, B]``, where the
            backbone has classes of its own (:mod:`wdae.calibration.background`).
    """

    kept: Mapping[str, Array]
    means: Array
    counts: Array
    added: Array
    shots: Array
    ordinary: Array
    base_profiles: Array | None = None
    profiles: Array | None = None

    def among(self, base: Array, added: Array) -> Familiarity:
        """With some base classes and some added ones alone, by their numbers."""
        return replace(
            self,
            means=self.means[base],
            counts=self.counts[base],
            added=self.added[added],
            shots=self.shots[added],
            ordinary=self.ordinary[added],
            base_profiles=None if self.base_profiles is None else self.base_profiles[base],
            profiles=None if self.profiles is None else self.profiles[added],
        )

    def is_unknown(self, features: Array, false_alarms: float) -> npt.NDArray[np.bool_]:
        """Which of the features ``[M, D]`` resemble no class, at a rate of false alarms ``[M]``."""
        return np.asarray(self.familiar(features) < self.threshold(false_alarms), dtype=np.bool_)

    def threshold(self, false_alarms: float) -> float:
        """The familiarity below which a picture is called unknown."""
        if false_alarms == 0:
            return -math.inf
        alone = interpolate(_curve(self.kept["alone"][0]), false_alarms)
        if not len(self.shots) or not self.played:
            return alone
        curves = [_curve(self.kept[kind][row]) for row in set(self._rows) for kind in ("base", "added")]
        joint = min(interpolate(curve, false_alarms) for curve in curves)
        return alone + min(1.0, len(self.shots) / WAYS) * (joint - alone)

    def familiar(self, features: Array) -> Array:
        """How familiar each of the features ``[M, D]`` is, at most 1, ``[M]``; of nothing, it is below 0."""
        vectors = self._coordinates(features)
        as_base, as_added = np.zeros(len(features)), np.zeros(len(features))
        allowed = np.ones(len(features))
        if len(self.means):
            ratios = self._ratios(vectors, *self._base_terms).max(1)
            ratios = ratios + self._explained(features, self.base_profiles)
            as_base = share_below(self.kept["known"][0], ratios)
        if len(self.shots) and self.played:
            ratios = self._ratios(vectors, *self._added_terms)
            ratios = ratios + self._explained(features, self.profiles)[:, None]
            each = np.empty(ratios.shape)
            for row in set(self._rows):
                same = [i for i, other in enumerate(self._rows) if other == row]
                below = share_below(self.kept["own"][row], ratios[:, same])
                each[:, same] = below ** float(self.kept["exponent"][row])
            as_added = each.max(1)
            allowed = self.ordinary[each.argmax(1)]
        ordinary = self._ordinary(features)
        ordinary = np.where((as_added >= as_base) & (ordinary >= allowed - ROUNDING), 1.0, ordinary)
        return np.minimum(np.maximum(as_base, as_added), ordinary / OUTLIER_SHARE)

    @property
    def played(self) -> list[int]:
        """Numbers of shots that pseudo-novel classes were played with."""
        return [int(k) for k in self.kept["shots"]] if "shots" in self.kept else []

    def nearest(self, shots: int) -> int:
        """The row of the number of shots that was played next to this one."""
        return min(range(len(self.played)), key=lambda row: abs(math.log(self.played[row] / shots)))

    def _ordinary(self, features: Array) -> Array:
        if "outlier" not in self.kept:
            return np.ones(len(features))
        curve, along = self.kept["outlying"][0], -(unit(features) @ self.kept["outlier"])
        least, unit_of = ends(curve)
        return np.asarray(share_below(curve, along) + ((along - least) / unit_of).clip(max=0))

    def _explained(self, features: Array, profiles: Array | None) -> Array:
        """What the background finds in pictures, as far as classes of these profiles explain it ``[M]``."""
        if profiles is None or not len(profiles):
            return np.zeros(len(features))
        scores = unit(features) @ self.kept["background"].T + self.kept["background_bias"]
        chances = np.exp(scores - scores.max(1, keepdims=True))
        same = profiles.max(0) / (profiles.max(0) + UNSURE)
        share = (chances / chances.sum(1, keepdims=True) @ same).astype(np.float64)
        share = share.clip(LEAST_SHARE, 1 - LEAST_SHARE)
        return np.asarray(float(self.kept["strength"]) * np.log(share / (1 - share)))

    def _coordinates(self, features: Array) -> Array:
        rows = (powered(features, float(self.kept["power"])) - self.kept["centre"]) @ self.kept["projection"]
        if bool(self.kept["equal_length"]):
            rows = unit(rows) * math.sqrt(rows.shape[-1])
        return rows / self.kept["widths"]

    @cached_property
    def _rows(self) -> list[int]:
        """For each added class, the row of its number of shots."""
        found = {k: self.nearest(k) for k in set(self.shots.tolist())}
        return [found[k] for k in self.shots.tolist()]

    @cached_property
    def _base_terms(self) -> tuple[Array, Array, Array]:
        return self._terms(self.means, self.counts)

    @cached_property
    def _added_terms(self) -> tuple[Array, Array, Array]:
        return self._terms(self.added, self.shots)

    def _terms(self, means: Array, counts: Array) -> tuple[Array, Array, Array]:
        """What ratios need of classes, whatever the vectors."""
        between = self.kept["between"]
        held = counts[:, None] * between
        inverse = 1 / (1 + between / (held + 1))
        expected = means * (held / (held + 1))
        constant = 0.5 * (np.log(inverse) - expected * expected * inverse).sum(1)
        return (expected * inverse).T, inverse.T, constant

    def _ratios(self, vectors: Array, scaled: Array, inverse: Array, constant: Array) -> Array:
        """:meth:`wdae.nn.plda.PLDA.ratios`."""
        squares, total = vectors**2, 1 + self.kept["between"]
        classes = vectors @ scaled - 0.5 * (squares @ inverse) + constant
        return np.asarray(classes + 0.5 * (squares / total + np.log(total)).sum(1, keepdims=True))


def check_kept(kept: Mapping[str, Array], n_base: int, dim: int) -> None:
    """Refuse arrays of a file that are no detector's."""
    shapes = {"centre": (dim,), "projection": (dim, dim), "widths": (dim,), "between": (dim,)}
    shapes |= {"means": (n_base, dim), "counts": (n_base,), "outlier": (dim,)}
    shapes |= dict.fromkeys(("strays", "strays_alike"), (len(STRAYS),))
    for name, shape in shapes.items():
        if name in kept and (kept[name].shape != shape or not np.isfinite(kept[name]).all()):
            raise ValueError(f"a detector whose {name} has shape {list(kept[name].shape)}")
    if not 0 < float(kept["power"]) <= 1:
        raise ValueError(f"a detector of power {float(kept['power'])}")
    if int(kept["counts"].min()) < 0:
        raise ValueError("a detector with negative counts")
    if not ((kept["widths"] > 0).all() and (kept["between"] >= 0).all()):
        raise ValueError("a detector with negative variances")
    bool(kept["equal_length"])
    if "background" in kept:
        _check_background(kept, n_base, dim)
    _check_curves(kept["known"])
    _check_curves(kept["alone"], 0, 1)
    if "outlier" in kept:
        _check_curves(kept["outlying"])
        if not 0 <= float(kept.get("spread", np.zeros(()))) <= _FARTHEST:
            raise ValueError(f"a detector whose added classes spread by {float(kept['spread'])}")
    if "shots" in kept:
        shots = kept["shots"].tolist()
        _check_curves(kept["own"], count=len(shots))
        for name in ("base", "added"):
            _check_curves(kept[name], 0, 1, len(shots))
        if not shots or not set(shots) <= set(SHOTS):
            raise ValueError(f"added classes with {shots} shots")
        exponents = kept["exponent"]
        with np.errstate(all="ignore"):
            steep = np.abs(np.log(exponents)) <= STEEPEST
        if exponents.shape != (len(shots),) or not steep.all():
            raise ValueError("added classes with exponents out of range")


def _check_background(kept: Mapping[str, Array], n_base: int, dim: int) -> None:
    count = len(kept["background_bias"])
    shapes = {"background": (count, dim), "background_bias": (count,), "profiles": (n_base, count)}
    for name, shape in shapes.items():
        if kept[name].shape != shape or not np.isfinite(kept[name]).all():
            raise ValueError(f"a detector whose {name} has shape {list(kept[name].shape)}")
    if not 0 < count <= MOST_BACKGROUND or not ((kept["profiles"] >= 0) & (kept["profiles"] <= 1)).all():
        raise ValueError("a detector whose background classes are none")
    if not 0 <= float(kept.get("sharpness", np.zeros(()))) <= _STEEPEST_PROFILE:
        raise ValueError(f"a detector whose profiles are sharpened by {float(kept['sharpness'])}")
    if int(kept.get("sharpened_from", np.ones(()))) < 1:
        raise ValueError("a detector whose profiles are sharpened from no example on")
    if not 0 <= float(kept["strength"]) <= _FARTHEST:
        raise ValueError(f"a detector whose background counts {float(kept['strength'])}")


def _check_curves(curves: Array, low: float = -_FARTHEST, high: float = _FARTHEST, count: int = 1) -> None:
    if curves.shape != (count, QUANTILES):
        raise ValueError(f"curves of shape {list(curves.shape)}")
    if not ((curves >= low).all() and (curves <= high).all() and (np.diff(curves, axis=1) >= 0).all()):
        raise ValueError("curves that fall, or leave their range")


def share_below(curve: Array, values: Array) -> Array:
    """The share of a distribution, given by its quantiles, below each of some values ``[M]``.

    >>> share_below(np.array([0.0, 10.0, 20.0]), np.array([-1.0, 5.0, 20.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    high = np.searchsorted(curve, values, side="right").clip(1, len(curve) - 1)
    low = high - 1
    step = (curve[high] - curve[low]).clip(min=1e-12)
    return np.asarray((low + ((values - curve[low]) / step).clip(0, 1)) / (len(curve) - 1))


def ends(curve: Sequence[float] | Array) -> tuple[float, float]:
    """The least of a distribution, given by its quantiles, and about one deviation of it.

    >>> ends((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    (1.0, 2.0)
    """
    middle, sixth = float(curve[len(curve) // 2]), float(curve[len(curve) // 6])
    return float(curve[0]), max(middle - sixth, _SMALLEST_RANGE)


def unit(rows: Array) -> Array:
    """Rows of length one; a row of zeros stays.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    return np.asarray(rows / np.sqrt((rows * rows).sum(-1, keepdims=True)).clip(min=1e-12))


def powered(rows: Array, power: float) -> Array:
    """``unit(sign(z) |z|^p)``: :func:`wdae.nn.space.powered`."""
    return unit(rows if power == 1.0 else np.sign(rows) * np.abs(rows) ** rows.dtype.type(power))


def _curve(row: Array) -> tuple[float, ...]:
    return tuple(row.tolist())
