"""What resembles no class: told from pictures of known classes at a chosen rate of false alarms.

A vector is as familiar as its likeliest class makes it (:class:`wdae.nn.plda.PLDA`): the share of pictures of
known classes that are less like their own. Base classes are judged by held-out pictures. An added class has a
few examples only; it is judged by pseudo-novel classes of as many shots. A second test knows pictures of
nothing: noise, text, flat colours and screens that were drawn by code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.calibration.probabilities import QUANTILES, minimise, quantiles
from wdae.calibration.pseudo_novel import splits, where_to_play
from wdae.methods.calibration import WAYS, interpolate, step_for
from wdae.nn.cosine import unit
from wdae.nn.plda import PLDA, class_means
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

SHOTS = (1, 2, 5, 10, 20)
"""Numbers of shots that pseudo-novel classes are played with."""
STRAYS = (3, 5, 10)
"""Numbers of examples among which one may be a stray."""
RATE = FALSE_WARNINGS = 0.05
"""The rate of false alarms, and of warnings, that figures are measured at."""

SETTINGS = ((1.0, 0.1, False), (0.5, 0.5, True))
"""Power, shrinkage and equal length of PLDA that are tried; which is better depends on the backbone."""

_MOST = 20_000  # pictures that PLDA is fitted on
_EPISODES, _QUERIES, _PICTURES, _CLASSES = 60, 15, 60, 300
_OUTLIER_SHARE = 0.1  # of all false alarms that may come of the test for pictures of nothing
_RIDGE = 1e-3
_STEEPEST = 3.0  # log of the largest exponent
_FARTHEST = 1e6  # ratios that a file may hold

Curve = tuple[float, ...]
"""Quantiles, evenly spaced from 0 to 1."""


@dataclass(frozen=True)
class Rehearsal:
    """What pseudo-novel classes of a number of shots taught.

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
class Added:
    """Added classes: means ``[n, R]`` of their examples, how many, how ordinary the least is ``[n]``."""

    means: Tensor
    shots: Tensor
    ordinary: Tensor


@dataclass(frozen=True, eq=False)
class Detector:
    """Tells what resembles no class.

    Attributes:
        means, counts: of the base classes ``[N, R]``, ``[N]``.
        known: quantiles of the ratio of held-out base pictures to their likeliest base class.
        alone: quantiles of their familiarity while nothing is added.
        rehearsals: by number of shots.
        strays: by number of examples of a class, the ratio of an example to the others below which it looks
            out of place; the least of one sound class in twenty lies lower.
        outlier: direction of pictures of nothing ``[D]``; None where the model was learned from features.
        outlying: quantiles of held-out base pictures along it, largest first.
        figures: shares caught at RATE, on classes and pictures that nothing was learned from.
    """

    plda: PLDA
    means: Tensor
    counts: Tensor
    known: Curve
    alone: Curve
    rehearsals: Mapping[int, Rehearsal] = field(default_factory=dict)
    strays: Mapping[int, float] = field(default_factory=dict)
    outlier: Tensor | None = None
    outlying: Curve = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def added(self, groups: Sequence[Tensor]) -> Added:
        """Added classes from the features ``[k, D]`` of each."""
        if not groups:
            return Added(self.means[:0], torch.zeros(0), torch.zeros(0))
        return Added(
            torch.stack([self.plda.coordinates(some).mean(0) for some in groups]),
            torch.tensor([len(some) for some in groups]),
            torch.stack([self.ordinary(some).min() for some in groups]),
        )

    @torch.no_grad()
    def familiarity(self, features: Tensor, added: Added, base: Tensor | None = None) -> Tensor:
        """How familiar each of the features ``[M, D]`` is, from 0 to 1, ``[M]``.

        Args:
            base: the base classes that come into question; all by default.
        """
        means, counts = (self.means, self.counts) if base is None else (self.means[base], self.counts[base])
        vectors = self.plda.coordinates(features)
        as_base = torch.zeros(len(features))
        if len(means):
            as_base = share_below(self.known, self.plda.ratios(vectors, means, counts).amax(1))
        as_added, allowed = torch.zeros(len(features)), torch.ones(len(features))
        if len(added.shots) and self.rehearsals:
            ratios = self.plda.ratios(vectors, added.means, added.shots)
            played = [self.rehearsals[self.nearest(k)] for k in added.shots.tolist()]
            as_added, likest = torch.stack(
                [one.familiar(ratios[:, i]) for i, one in enumerate(played)], 1
            ).max(1)
            allowed = added.ordinary[likest]
        return _joined(as_base, as_added, self.ordinary(features), allowed)

    @torch.no_grad()
    def agreement(self, features: Tensor) -> Tensor:
        """Ratio of each example ``[k, D]`` of a class to the others ``[k]``."""
        return _agreement(self.plda, self.plda.coordinates(features))

    def stray(self, shots: int) -> float:
        """The agreement below which one of so many examples looks out of place."""
        if shots < min(STRAYS) or not self.strays:
            return -math.inf
        return step_for(shots, self.strays)

    def ordinary(self, features: Tensor) -> Tensor:
        """The share of base pictures that are more like pictures of nothing, ``[M]``; 1 without that test."""
        if self.outlier is None:
            return torch.ones(len(features))
        return share_below(self.outlying, -(unit(features) @ self.outlier))

    def threshold(self, false_alarms: float, shots: Sequence[int]) -> float:
        """The familiarity below which a picture is called unknown, with added classes of so many shots.

        False alarms are as many as asked for among base pictures or among those of added classes, whichever
        has more; with more than WAYS added classes they are fewer.
        """
        if false_alarms == 0:
            return 0.0
        alone = interpolate(self.alone, false_alarms)
        if not shots or not self.rehearsals:
            return alone
        played = [self.rehearsals[self.nearest(k)] for k in set(shots)]
        joint = min(interpolate(curve, false_alarms) for one in played for curve in (one.base, one.added))
        share = min(1.0, len(shots) / WAYS)
        return alone + share * (joint - alone)

    @property
    def worth(self) -> float:
        """The share of unseen classes that is caught, summed over numbers of shots."""
        return sum(value for key, value in self.figures.items() if key == "caught" or key[7:].isdigit())

    def tensors(self) -> dict[str, Tensor]:
        """For a model's file; figures belong to the balance."""
        plda, played = self.plda, [self.rehearsals[k] for k in sorted(self.rehearsals)]
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
            found["shots"] = torch.tensor(sorted(self.rehearsals))
            found |= {k: torch.tensor([getattr(one, k) for one in played]) for k in ("own", "base", "added")}
            found |= {k: torch.tensor([getattr(one, k) for one in played]) for k in ("caught", "exponent")}
        if self.strays:
            found["strays"] = torch.tensor([self.strays[k] for k in STRAYS])
        if self.outlier is not None:
            found |= {"outlier": self.outlier, "outlying": torch.tensor([self.outlying])}
        return found

    @classmethod
    def of_tensors(cls, kept: Mapping[str, Tensor], n_base: int, dim: int) -> Detector:
        """From a model's file, checked."""
        shapes = {"centre": (dim,), "projection": (dim, dim), "widths": (dim,), "between": (dim,)}
        shapes |= {"means": (n_base, dim), "counts": (n_base,), "outlier": (dim,), "strays": (len(STRAYS),)}
        for name, shape in shapes.items():
            if name in kept and (kept[name].shape != shape or not bool(kept[name].isfinite().all())):
                raise ValueError(f"a detector whose {name} has shape {list(kept[name].shape)}")
        if not 0 < float(kept["power"]) <= 1:
            raise ValueError(f"a detector of power {float(kept['power'])}")
        if int(kept["counts"].min()) < 0:
            raise ValueError("a detector with negative counts")
        if not bool((kept["widths"] > 0).all() and (kept["between"] >= 0).all()):
            raise ValueError("a detector with negative variances")
        rehearsals = {}
        if "shots" in kept:
            shots = kept["shots"].tolist()
            own, base, added = _points(kept["own"]), *(_points(kept[k], 0, 1) for k in ("base", "added"))
            if not set(shots) <= set(SHOTS):
                raise ValueError(f"rehearsals with {shots} shots")
            if not bool((kept["exponent"].log().abs() <= _STEEPEST).all()):
                raise ValueError("rehearsals with exponents out of range")
            numbers = (kept[name].tolist() for name in ("caught", "exponent"))
            rows = zip(own, base, added, *numbers, strict=True)
            rehearsals = {k: Rehearsal(*row) for k, row in zip(shots, rows, strict=True)}
        return cls(
            PLDA(
                **{name: kept[name].float() for name in ("centre", "projection", "widths", "between")},
                power=float(kept["power"]),
                equal_length=bool(kept["equal_length"]),
            ),
            kept["means"].float(),
            kept["counts"],
            _points(kept["known"])[0],
            _points(kept["alone"], 0, 1)[0],
            rehearsals,
            dict(zip(STRAYS, kept["strays"].tolist(), strict=True)) if "strays" in kept else {},
            kept["outlier"].float() if "outlier" in kept else None,
            _points(kept["outlying"])[0] if "outlier" in kept else (),
        )

    def nearest(self, shots: int) -> int:
        """The number of shots that was rehearsed next to this one."""
        return min(self.rehearsals, key=lambda k: abs(math.log(k / shots)))


def _points(curves: Tensor, low: float = -_FARTHEST, high: float = _FARTHEST) -> list[Curve]:
    """Rows of a file as curves; what is none is refused."""
    if curves.ndim != 2 or curves.shape[1] != QUANTILES or len(curves) > len(SHOTS):
        raise ValueError(f"curves of shape {list(curves.shape)}")
    if not bool((curves >= low).all() and (curves <= high).all() and (curves.diff(dim=1) >= 0).all()):
        raise ValueError("curves that fall, or leave their range")
    return [tuple(row) for row in curves.tolist()]


def _joined(as_base: Tensor, as_added: Tensor, ordinary: Tensor, allowed: Tensor) -> Tensor:
    """Familiarity: to the likelier kind of class, and no picture of nothing ``[M]``.

    An added class may be one of text or of plain colours: what is no less ordinary than its examples passes.
    """
    passes = (as_added >= as_base) & (ordinary >= allowed)
    ordinary = torch.where(passes, torch.ones_like(ordinary), ordinary)
    return torch.minimum(torch.maximum(as_base, as_added), ordinary / _OUTLIER_SHARE)


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


@torch.no_grad()
def fit_detector(
    bank: FeatureBank,
    played: FeatureBank | None = None,
    outliers: Mapping[str, Tensor] | None = None,
    *,
    seed: int = 0,
    images: int = 0,
) -> Detector | None:
    """A detector for the base classes of a bank; None where no base images are held out.

    Args:
        played: the bank whose classes play novel, where it is another.
        outliers: features ``[m, D]`` of pictures of nothing, by kind; every other one is for figures.
        images: that of :func:`wdae.calibration.pseudo_novel.splits`.
    """
    if not bank.has(Part.BASE_HELD_OUT):
        return None
    train, held_out = bank.select(Part.BASE_TRAIN), bank.select(Part.BASE_HELD_OUT)
    known = held_out.features[:: -(-len(held_out.features) // _MOST)]
    played = bank if played is None else played
    stages = _stages(bank, played, images)
    best: Detector | None = None
    for settings in SETTINGS:
        made = _one(train, known, stages, outliers, settings, seed)
        if best is None or (made is not None and made.worth > best.worth):
            best = made
    return best


def _one(
    train: ClassSet,
    known: Tensor,
    stages: Sequence[_Stage],
    outliers: Mapping[str, Tensor] | None,
    settings: tuple[float, float, bool],
    seed: int,
) -> Detector | None:
    """The detector of one setting."""
    every = -(-len(train.features) // _MOST)
    features, labels = train.features[::every], train.labels[::every]
    plda = PLDA.fit(features, labels, *settings)
    if plda is None:
        return None
    means = class_means(plda.coordinates(features), labels, train.n_classes).half().float()
    ratios = plda.ratios(plda.coordinates(known), means, train.counts).amax(1)
    made = Detector(plda, means, train.counts, quantiles(ratios), ())
    if outliers:
        made = _with_outliers(made, known, {k: rows[::2] for k, rows in outliers.items()})
    made = replace(made, alone=quantiles(made.familiarity(known, made.added([]))))
    made = _rehearsed(made, stages, seed)
    return replace(made, figures=_figures(made, {k: rows[1::2] for k, rows in (outliers or {}).items()}))


def _with_outliers(made: Detector, known: Tensor, kinds: Mapping[str, Tensor]) -> Detector:
    """With the direction that parts pictures of nothing from held-out ones, by logistic regression."""
    strange = torch.cat(list(kinds.values()))
    rows = unit(torch.cat([known, strange])).double()
    is_strange = torch.cat([torch.zeros(len(known)), torch.ones(len(strange))]).double()
    weight = torch.where(is_strange > 0, 0.5 / len(strange), 0.5 / len(known)).double()
    direction = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        lost = F.binary_cross_entropy_with_logits(rows @ direction + offset, is_strange, reduction="none")
        return weight @ lost + _RIDGE * direction.square().sum() / 2

    minimise([direction, offset], loss)
    found = direction.detach().float()
    return replace(made, outlier=found, outlying=quantiles(-(unit(known) @ found)))


@dataclass(frozen=True, eq=False)
class _Pictures:
    """Pictures of a class: vectors ``[m, R]``, how familiar the base classes are to them, how ordinary."""

    vectors: Tensor
    as_base: Tensor
    ordinary: Tensor

    def some(self, rows: Tensor | slice) -> _Pictures:
        return _Pictures(self.vectors[rows], self.as_base[rows], self.ordinary[rows])

    @classmethod
    def joined(cls, parts: Sequence[_Pictures]) -> _Pictures:
        names = ("vectors", "as_base", "ordinary")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True, eq=False)
class _Stage:
    """Features of pseudo-novel classes, of known base pictures, and which base classes there are."""

    classes: list[Tensor]
    known: Tensor
    base: Tensor


def _stages(bank: FeatureBank, played: FeatureBank, images: int) -> list[_Stage]:
    where = where_to_play(played)
    place = {bank.class_names[c]: i for i, c in enumerate(bank.base_classes)}
    return [
        _Stage(
            [_few(split.pool, c) for c in range(split.pool.n_classes)],
            torch.cat([_few(split.held_out, c) for c in range(split.held_out.n_classes)]),
            torch.tensor([place[name] for name in split.held_out.names]),
        )
        for split in (splits(played, where, images=images) if where is not None else ())
    ]


def _rehearsed(made: Detector, given: Sequence[_Stage], seed: int) -> Detector:
    stages = []
    for stage in given:
        base = stage.base

        def pictures(rows: Tensor, base: Tensor = base) -> _Pictures:
            vectors = made.plda.coordinates(rows)
            ratios = made.plda.ratios(vectors, made.means[base], made.counts[base]).amax(1)
            return _Pictures(vectors, share_below(made.known, ratios), made.ordinary(rows))

        stages.append(([pictures(rows) for rows in stage.classes], pictures(stage.known)))
    unseen = [some for classes, _ in stages for some in classes]
    if not unseen:
        return made
    found = {}
    for n_shot in SHOTS:
        if one := _rehearse(made.plda, stages, n_shot, derive_seed(seed, "unknown", n_shot)):
            found[n_shot] = one
    alone = _joined(*_alone(_Pictures.joined(unseen)))
    figures = {"caught": float((alone < made.threshold(RATE, [])).double().mean())}
    strays, noticed = _strays(made.plda, [classes for classes, _ in stages], derive_seed(seed, "strays"))
    return replace(made, rehearsals=found, strays=strays, figures=figures | noticed)


def _strays(
    plda: PLDA, stages: Sequence[list[_Pictures]], seed: int
) -> tuple[dict[int, float], dict[str, float]]:
    """How little an example agrees with the others in one sound class of twenty; strays noticed by that."""
    generator = torch.Generator().manual_seed(seed)
    found, figures = {}, {}
    for size in STRAYS:
        sound, strange = [], []
        for number in range(_CLASSES):
            able = [some.vectors for some in stages[number % len(stages)] if len(some.vectors) >= size]
            if len(able) < 2:
                return {}, {}
            mine, other = (able[i] for i in torch.randperm(len(able), generator=generator)[:2].tolist())
            rows = mine[torch.randperm(len(mine), generator=generator)[:size]]
            sound.append(_agreement(plda, rows).min())
            rows = torch.cat([rows[1:], other[torch.randint(len(other), (1,), generator=generator)]])
            strange.append(_agreement(plda, rows)[-1])
        found[size] = float(torch.stack(sound).quantile(FALSE_WARNINGS))
        figures[f"strays_{size}"] = float((torch.stack(strange) < found[size]).double().mean())
    return found, figures


def _agreement(plda: PLDA, vectors: Tensor) -> Tensor:
    """Ratio of each of the vectors ``[k, R]`` to the mean of the others ``[k]``."""
    others = (vectors.sum(0) - vectors) / max(1, len(vectors) - 1)
    counts = torch.full((len(vectors),), len(vectors) - 1)
    return plda.ratios(vectors, others, counts).diagonal()


def _few(images: ClassSet, c: int) -> Tensor:
    """Some pictures of a class, evenly over those there are."""
    rows = images.of_class(c)
    return rows[:: max(1, len(rows) // _PICTURES)]


def _alone(some: _Pictures) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`_joined` takes it, without added classes."""
    none = torch.zeros_like(some.as_base)
    return some.as_base, none, some.ordinary, none + 2


def _rehearse(
    plda: PLDA, stages: Sequence[tuple[list[_Pictures], _Pictures]], n_shot: int, seed: int
) -> Rehearsal | None:
    """Episodes in which some of the pseudo-novel classes are added, the others never seen."""
    if not stages:
        return None
    generator = torch.Generator().manual_seed(seed)
    ratios: dict[str, list[Tensor]] = {"own": [], "base": [], "unseen": []}
    others: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {"own": [], "base": [], "unseen": []}
    for number in range(_EPISODES):
        classes, known = stages[number % len(stages)]
        able = [c for c, some in enumerate(classes) if len(some.vectors) > n_shot]
        n_way = min(WAYS, (len(able) + 1) // 2)
        if not n_way:
            return None
        drawn = [able[i] for i in torch.randperm(len(able), generator=generator)[:n_way].tolist()]
        orders = [torch.randperm(len(classes[c].vectors), generator=generator) for c in drawn]
        shots = [classes[c].some(rows[:n_shot]) for c, rows in zip(drawn, orders, strict=True)]
        means = torch.stack([some.vectors.mean(0) for some in shots])
        least = torch.stack([some.ordinary.min() for some in shots])
        counts = torch.full((n_way,), n_shot)
        own = [
            classes[c].some(rows[n_shot : n_shot + _QUERIES]) for c, rows in zip(drawn, orders, strict=True)
        ]
        unseen = [some.some(slice(0, _QUERIES)) for c, some in enumerate(classes) if c not in drawn]
        rows = torch.randperm(len(known.vectors), generator=generator)[: WAYS * _QUERIES]
        for kind, shown in (("own", own), ("base", [known.some(rows)]), ("unseen", unseen)):
            if shown:
                some = _Pictures.joined(shown)
                best = plda.ratios(some.vectors, means, counts).max(1)
                ratios[kind].append(best.values)
                others[kind].append((some.as_base, some.ordinary, least[best.indices]))
    curve = quantiles(torch.cat(ratios["own"]))
    asked = {
        kind: (share_below(curve, torch.cat(ratios[kind])), *map(torch.cat, zip(*rows, strict=True)))
        for kind, rows in others.items()
        if rows
    }

    def familiar(kind: str, exponent: float) -> Tensor:
        as_added, as_base, ordinary, allowed = asked[kind]
        return _joined(as_base, as_added.pow(exponent), ordinary, allowed)

    low, high = -_STEEPEST, _STEEPEST
    for _ in range(20):  # the larger the exponent, the fewer pictures of added classes are familiar
        middle = math.exp((low + high) / 2)
        lowest = [familiar(kind, middle).double().quantile(RATE) for kind in ("own", "base")]
        low, high = (math.log(middle), high) if lowest[0] > lowest[1] else (low, math.log(middle))
    base, added = quantiles(familiar("base", middle)), quantiles(familiar("own", middle))
    threshold = min(interpolate(base, RATE), interpolate(added, RATE))
    caught = (familiar("unseen", middle) < threshold).double().mean() if "unseen" in asked else math.nan
    return Rehearsal(curve, base, added, float(caught), middle)


def _figures(made: Detector, outliers: Mapping[str, Tensor]) -> dict[str, float]:
    """Shares that are called unknown at RATE: unseen classes, and pictures of nothing of each kind."""
    figures = dict(made.figures) | {
        f"caught_{k}": one.caught for k, one in made.rehearsals.items() if not math.isnan(one.caught)
    }
    nobody, threshold = made.added([]), made.threshold(RATE, [])
    for kind, rows in outliers.items():
        figures[f"caught_{kind}"] = float((made.familiarity(rows, nobody) < threshold).double().mean())
    return figures
