"""Fitting a detector of the unknown: on held-out base pictures, pseudo-novel classes and outlier pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.calibration.background import SHARPNESS, Background, explained, sharpened
from wdae.calibration.outlier_test import OutlierTest, outlier_test, with_least
from wdae.calibration.probabilities import quantiles
from wdae.calibration.pseudo_novel import splits, where_to_play
from wdae.calibration.strays import few, stray_limits
from wdae.calibration.unknown import (
    RATE,
    STEEPEST,
    STRAYS,
    AddedClasses,
    Curve,
    Detector,
    Seen,
    joined,
    share_below,
)
from wdae.methods.calibration import SHOTS, WAYS, interpolate
from wdae.nn.plda import PLDA
from wdae.nn.space import means_by_class
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

SETTINGS = ((1.0, 0.1, False), (0.5, 0.5, True))
"""Power, shrinkage and equal length of PLDA that are tried; which is better depends on the backbone."""

SETTINGS_OF_FEW = ((1.0, 0.97, False), (0.5, 0.97, True))
"""The same for where the covariance within classes is hardly known: of fewer pictures than a feature has
numbers, these alone are tried, and of many times as many they are not."""

STRENGTHS = (0.0, 4.0)
"""What the backbone's own classes count that is tried, in the unit in which they vary as ratios do."""

_MOST = 20_000  # pictures that PLDA is fitted on
_EPISODES, _QUERIES = 60, 15
_AT_ONCE = 2 * WAYS - 2
"""Base classes that play novel together, where there are enough: half of them are added."""
_MANY = 4  # pictures for each number of a feature


@torch.no_grad()
def fit_detector(
    bank: FeatureBank,
    played: FeatureBank | None = None,
    outliers: Mapping[str, Tensor] | None = None,
    background: Background | None = None,
    *,
    seed: int = 0,
) -> Detector | None:
    """A detector for the base classes of a bank; None where no base images are held out.

    Base classes that play novel are unknown to the detector that they are tried on: it is one that was fitted
    to the others alone.

    Args:
        played: the bank whose classes play novel, where it is another.
        outliers: features ``[m, D]`` of pictures of nothing, by kind; every other one is for figures.
        background: the backbone's own classes.
    """
    if not bank.has(Part.BASE_HELD_OUT):
        return None
    train, held_out = bank.select(Part.BASE_TRAIN), bank.select(Part.BASE_HELD_OUT)
    drawn = {kind: rows[::2] for kind, rows in (outliers or {}).items()}
    asked = {kind: rows[1::2] for kind, rows in (outliers or {}).items()}
    pools = _pools(bank, bank if played is None else played)
    test = outlier_test(_some(held_out), drawn)
    tests = [
        outlier_test(_some(_without(held_out, pool.away)), drawn) if pool.away else test for pool in pools
    ]
    best: Detector | None = None
    strengths = STRENGTHS if background is not None else STRENGTHS[:1]
    for settings, strength in itertools.product(_settings(train), strengths):
        made = _of_base(train, held_out, test, background, settings, strength)
        if made is None:
            continue
        tried = []
        for pool, without in zip(pools, tests, strict=True):
            known = _without(train, pool.away), _without(held_out, pool.away)
            beside = _of_base(*known, without, background, settings, strength, made) if pool.away else made
            if beside is not None:
                tried.append((pool, beside))
        made = _with_added(made, tried, seed)
        made = replace(made, figures=_figures(made, tried, asked))
        if best is None or made.worth > best.worth:
            best = made
    return best


def _settings(train: ClassSet) -> tuple[tuple[float, float, bool], ...]:
    n_pictures, dim = train.features.shape
    if n_pictures < dim:
        return SETTINGS_OF_FEW
    return SETTINGS + SETTINGS_OF_FEW if n_pictures < _MANY * dim else SETTINGS


def _of_base(
    train: ClassSet,
    held_out: ClassSet,
    test: OutlierTest | None,
    background: Background | None,
    settings: tuple[float, float, bool],
    strength: float,
    like: Detector | None = None,
) -> Detector | None:
    """The detector of one setting, while nothing is added.

    Args:
        like: one in which the background counts as much as it shall here; by default ``strength`` says it.
    """
    known = _some(held_out)
    every = -(-len(train.features) // _MOST)
    features, labels = train.features[::every], train.labels[::every]
    plda = PLDA.fit(features, labels, *settings)
    if plda is None:
        return None
    means = means_by_class(plda.coordinates(features), labels, train.n_classes).half().float()
    made = Detector(plda, means, train.counts, (), ())
    if background is not None and strength:
        made = _with_background(made, background, features, labels, strength)
        made = made if like is None else replace(made, strength=like.strength)
    made = replace(made, known=quantiles(with_least(made.base_ratios(made.seen(known)).amax(1))))
    if test is not None:
        made = replace(made, outlier=test.direction, outlying=test.outlying, spread=test.spread)
    return replace(made, alone=_cautious(made.familiarity(known, made.added([])), len(known)))


def _without(images: ClassSet, away: Collection[str]) -> ClassSet:
    """A set without some of its classes."""
    if not away:
        return images
    stays = [c for c, name in enumerate(images.names) if name not in away]
    counts, names = images.counts[stays], tuple(images.names[c] for c in stays)
    features = torch.cat([images.of_class(c) for c in stays])
    return ClassSet(features, counts.cumsum(0) - counts, counts, names)


def _with_background(
    made: Detector, background: Background, features: Tensor, labels: Tensor, strength: float
) -> Detector:
    """With what the backbone's own classes say, which varies as much as ratios do where it counts 1."""
    chances = background.chances(features)
    profiles = sharpened(means_by_class(chances, labels, len(made.means)), SHARPNESS).half().float()
    own = torch.arange(len(labels)), labels
    ratios = made.plda.ratios(made.plda.coordinates(features), made.means, made.counts)[own]
    found = explained(chances, profiles.amax(0, keepdim=True))
    unit_of = ratios.std() / found.std().clamp(min=1e-6)
    return replace(
        made,
        background=background,
        profiles=profiles,
        strength=float(strength * unit_of),
        sharpness=SHARPNESS,
    )


def _some(held_out: ClassSet) -> Tensor:
    """The held-out pictures, or some of very many."""
    return held_out.features[:: -(-len(held_out.features) // _MOST)]


@dataclass(frozen=True, eq=False)
class _Pictures:
    """Pictures of a class: how they are seen, how familiar the base classes are to them, how ordinary."""

    seen: Seen
    as_base: Tensor
    ordinary: Tensor

    def __len__(self) -> int:
        return len(self.as_base)

    def some(self, rows: Tensor | slice) -> _Pictures:
        return _Pictures(self.seen.some(rows), self.as_base[rows], self.ordinary[rows])

    @classmethod
    def joined(cls, parts: Sequence[_Pictures]) -> _Pictures:
        vectors, chances = (torch.cat(same) for same in zip(*(p.seen.parts() for p in parts), strict=True))
        familiar, ordinary = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("as_base", "ordinary")
        )
        return cls(Seen(vectors, chances), familiar, ordinary)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Pseudo-novel classes, for a detector that does not know them.

    Attributes:
        classes: their features ``[k, D]``.
        known: features of base pictures that are shown beside them.
        base: which of the detector's base classes take part.
        away: those of the bank's base classes that play novel.
    """

    classes: list[Tensor]
    known: Tensor
    base: Tensor
    away: frozenset[str]


def _pools(bank: FeatureBank, played: FeatureBank) -> list[_Pool]:
    where, pools = where_to_play(played), []
    names = [bank.class_names[c] for c in bank.base_classes]
    for split in splits(played, where, images=max(STRAYS), at_once=_AT_ONCE) if where is not None else ():
        away = frozenset(names).intersection(split.pool.names)
        place = {name: i for i, name in enumerate(name for name in names if name not in away)}
        held_out = split.held_out
        pools.append(
            _Pool(
                [split.pool.of_class(c) for c in range(split.pool.n_classes)],
                torch.cat([few(held_out.of_class(c)) for c in range(held_out.n_classes)]),
                torch.tensor([place[name] for name in held_out.names]),
                away,
            )
        )
    return pools


@dataclass(frozen=True, eq=False)
class _Played:
    """What a detector sees in the pictures of pseudo-novel classes, and beside them."""

    made: Detector
    classes: list[_Pictures]
    known: _Pictures

    @classmethod
    def of(cls, pool: _Pool, made: Detector) -> _Played:
        def pictures(rows: Tensor) -> _Pictures:
            seen = made.seen(rows)
            ratios = made.base_ratios(seen, pool.base).amax(1)
            return _Pictures(seen, share_below(made.known, ratios), made.ordinary(rows))

        return cls(made, [pictures(few(rows)) for rows in pool.classes], pictures(pool.known))


def _with_added(made: Detector, given: Sequence[tuple[_Pool, Detector]], seed: int) -> Detector:
    pools = [_Played.of(*one) for one in given]
    unseen = [some for pool in pools for some in pool.classes]
    if not unseen:
        return made
    found = {}
    for n_shot in SHOTS:
        if one := _added_classes(pools, n_shot, derive_seed(seed, "unknown", n_shot)):
            found[n_shot] = one
    alone = torch.cat([joined(*_alone(some)) for some in unseen])
    figures = {"caught": float((alone < made.threshold(RATE, [])).double().mean())}
    strays, noticed = stray_limits(
        [(pool.classes, beside) for pool, beside in given], derive_seed(seed, "strays")
    )
    return replace(made, by_shots=found, strays=strays, figures=figures | noticed)


def _cautious(familiar: Tensor, n_pictures: int) -> Curve:
    """Quantiles of how familiar pictures are, of which so many are different ones ``[M]``.

    The picture to come is one more, and may be the least familiar of all: of few pictures the least familiar
    ones say little (as in :mod:`wdae.calibration.conformal`).
    """
    zeros = familiar.new_zeros(-(-len(familiar) // n_pictures))
    return quantiles(torch.cat([zeros, familiar.clamp(min=0)]))


def _alone(some: _Pictures) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`wdae.calibration.unknown.joined` takes it, without added classes."""
    none = torch.zeros_like(some.as_base)
    return some.as_base, none, some.ordinary, none + 2


def _added_classes(pools: Sequence[_Played], n_shot: int, seed: int) -> AddedClasses | None:
    """Episodes in which some of the pseudo-novel classes are added, the others never seen."""
    if not pools:
        return None
    generator = torch.Generator().manual_seed(seed)
    ratios: dict[str, list[Tensor]] = {"own": [], "base": [], "unseen": []}
    others: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {"own": [], "base": [], "unseen": []}
    for number in range(_EPISODES):
        played = pools[number % len(pools)]
        made, classes, known = played.made, played.classes, played.known
        able = [c for c, some in enumerate(classes) if len(some) > n_shot]
        n_way = min(WAYS, (len(able) + 1) // 2)
        if not n_way:
            return None
        drawn = [able[i] for i in torch.randperm(len(able), generator=generator)[:n_way].tolist()]
        orders = [torch.randperm(len(classes[c]), generator=generator) for c in drawn]
        shots = [classes[c].some(rows[:n_shot]) for c, rows in zip(drawn, orders, strict=True)]
        means, profiles = (
            torch.stack(part) for part in zip(*(made.class_of(some.seen) for some in shots), strict=True)
        )
        least = torch.stack([made.least_ordinary(some.ordinary) for some in shots])
        counts = torch.full((n_way,), n_shot)
        own = [
            classes[c].some(rows[n_shot : n_shot + _QUERIES]) for c, rows in zip(drawn, orders, strict=True)
        ]
        unseen = [some.some(slice(0, _QUERIES)) for c, some in enumerate(classes) if c not in drawn]
        rows = torch.randperm(len(known), generator=generator)[: WAYS * _QUERIES]
        for kind, shown in (("own", own), ("base", [known.some(rows)]), ("unseen", unseen)):
            if shown:
                some = _Pictures.joined(shown)
                best = made.ratios(some.seen, means, counts, profiles).max(1)
                ratios[kind].append(best.values)
                others[kind].append((some.as_base, some.ordinary, least[best.indices]))
    curve = quantiles(torch.cat(ratios["own"]))
    asked = {
        kind: (share_below(curve, torch.cat(ratios[kind])), *map(torch.cat, zip(*rows, strict=True)))
        for kind, rows in others.items()
        if rows
    }

    def likely(kind: str, exponent: float) -> Tensor:
        return torch.maximum(asked[kind][0].pow(exponent), asked[kind][1])

    def familiar(kind: str, exponent: float) -> Tensor:
        as_added, as_base, ordinary, allowed = asked[kind]
        return joined(as_base, as_added.pow(exponent), ordinary, allowed)

    low, high = -STEEPEST, STEEPEST
    for _ in range(20):  # the larger the exponent, the fewer pictures of added classes are familiar
        middle = math.exp((low + high) / 2)
        lowest = [likely(kind, middle).double().quantile(RATE) for kind in ("own", "base")]
        low, high = (math.log(middle), high) if lowest[0] > lowest[1] else (low, math.log(middle))
    base = _cautious(familiar("base", middle), sum(len(pool.known) for pool in pools))
    added = _cautious(familiar("own", middle), sum(len(some) for pool in pools for some in pool.classes))
    threshold = min(interpolate(base, RATE), interpolate(added, RATE))
    caught = (familiar("unseen", middle) < threshold).double().mean() if "unseen" in asked else math.nan
    return AddedClasses(curve, base, added, float(caught), middle)


def _figures(
    made: Detector, tried: Sequence[tuple[_Pool, Detector]], outliers: Mapping[str, Tensor]
) -> dict[str, float]:
    """Shares that are called unknown at RATE: unseen classes, and pictures of nothing of each kind.

    The latter with nothing added, or with pseudo-novel classes of any number of examples where that is less.
    """
    figures = dict(made.figures) | {
        f"caught_{k}": one.caught for k, one in made.by_shots.items() if not math.isnan(one.caught)
    }
    alone, beside_added = (made, made.added([]), made.threshold(RATE, [])), []
    for pool, beside in tried:
        shown = replace(beside, by_shots=made.by_shots)
        for shots in made.by_shots:
            able = [rows[:shots] for rows in pool.classes if len(rows) > shots][:WAYS]
            beside_added.append((shown, shown.added(able), made.threshold(RATE, [shots] * len(able))))
    for kind, rows in outliers.items():
        shares = [
            float(
                torch.cat([one.familiarity(rows, added) < limit for one, added, limit in cases])
                .double()
                .mean()
            )
            for cases in ([alone], beside_added)
            if cases
        ]
        figures[f"caught_{kind}"] = min(shares)
    return figures
