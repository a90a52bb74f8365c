"""Several shots: novel weights become the likeliest ones, with the method's own weights as their prior."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.methods.base import Support, WeightScorer, base_classes
from wdae.methods.calibration import HALF, BalancedScorer, Calibration, log_odds
from wdae.nn.cosine import unit
from wdae.nn.posterior import MANY, TOGETHER, Posterior, mass_of, regression
from wdae.nn.space import FeatureSpace
from wdae.parts import Part

_MOST_ANCHORS = 6400
_FEWEST_IMAGES = 30  # of a class, on average, that base weights are regressed from
_IMAGES = 100  # of a class, where λ is the posterior's
_MOST_IMAGES = 500  # of a class
_MOST_PRODUCTS = 2e9  # of images, classes and dimensions: a minute of one core
_FITTED = ("novel", "slope", "offset")  # of a scorer
_BASE_FITTED = ("base", "base_slope", "base_offset")


def draw_posterior(
    train: ClassSet, per_class: int, strength: float, seed: int, **more: Any
) -> Posterior | None:
    """A posterior with base-train images drawn at random; None where none are asked for.

    They are kept in half precision, so that a method is the same when it is read again. ``more`` are the
    posterior's other fields.
    """
    if not per_class:
        return None
    chosen, keys = _some_of_each(train, per_class, seed)
    if len(chosen) > _MOST_ANCHORS:
        chosen = chosen[keys[chosen].argsort()[:_MOST_ANCHORS]]
    return Posterior(unit(train.features[chosen]).half().float(), train.n_classes, strength, **more)


def _some_of_each(train: ClassSet, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """At most so many rows of each class, drawn at random, and the random number of each row."""
    keys = torch.rand(len(train.features), generator=torch.Generator().manual_seed(seed)).to(train.device)
    order = (train.labels.double() + keys).argsort()  # class after class, in random order within each
    place = torch.arange(len(order), device=train.device) - train.starts[train.labels[order]]
    return order[place < per_class], keys


def regressed_base(bank: FeatureBank, strength: float, seed: int, device: Any = "cpu") -> Tensor | None:
    """Base weights and intercepts ``[N, D + 1]`` of a posterior, from hundreds of images of each class.

    λ is that of the posterior where a class has a hundred, and goes with their number, so that weights from
    more or fewer are as long. None where there are too few images for it, or too many classes, or where the
    bank's held-out images are told apart worse than by its base weights.
    """
    train = bank.select(Part.BASE_TRAIN, device=device)
    N = train.n_classes
    most = int(_MOST_PRODUCTS / max(1, N * N * train.dim))  # in time for the one who waits
    chosen, _ = _some_of_each(train, max(_IMAGES, min(_MOST_IMAGES, most)), seed)
    size = len(chosen)
    if N < 2 or size < _FEWEST_IMAGES * N or size * N * train.dim > _MOST_PRODUCTS:
        return None
    stiff = strength * size / (N * _IMAGES)
    found = regression(unit(train.features[chosen].float()), train.labels[chosen], N, stiff)
    if bank.has(Part.BASE_HELD_OUT):
        held_out, weights = bank.select(Part.BASE_HELD_OUT, device=train.device), base_classes(bank).weights
        rows, right = unit(held_out.features.float()), []
        for matrix, offset in ((unit(weights.to(rows)), 0), (found[:, :-1], found[:, -1])):
            right.append(float(((rows @ matrix.T + offset).argmax(1) == held_out.labels).double().mean()))
        if right[1] < right[0]:
            return None
    return found.half().float()


class FurtherFit:
    """Fits novel weights further to their shots, beside given base classes.

    What the base classes alone determine is computed once, and what they and its examples say of a class is
    kept from one change of a model to the next.

    Args:
        base: weights of the base classes ``[N, D]``, in the method's space.
        space: the method's.
    """

    def __init__(self, base: Tensor, space: FeatureSpace | None) -> None:
        self.base, self.space = base, space
        self._known: tuple[Posterior, float, dict[bool, tuple[Tensor, dict[int, Tensor]]]] | None = None
        self._last: tuple[Tensor | None, dict[bytes, tuple[Tensor, Tensor]]] = (None, {})

    def fit(
        self,
        scorer: WeightScorer,
        shots: Tensor,
        support: Support,
        rows: Tensor | None,
        posterior: Posterior | None,
        balance: Calibration | None,
    ) -> WeightScorer:
        """The scorer with the weights of classes that have enough shots updated.

        Args:
            scorer: as the method has it before.
            shots: number of shots of each novel class ``[E, n]``.
            support: the shots of all novel classes, or of those in ``rows``.
            rows: which of the novel classes have their shots in ``support``; None: all.
            posterior, balance: the method's.
        """
        if posterior is None or balance is None or posterior.n_base != len(self.base):
            return scorer
        assert isinstance(scorer, BalancedScorer)
        many = shots >= posterior.fewest
        anew = posterior.regressed is not None and posterior.intercepts and bool((shots >= MANY).any())
        if rows is None:
            if not bool(many.any()):
                return scorer
            apart = anew and not bool((shots >= MANY).any(1).all())
            if apart or bool((many != many[:1]).any()):
                return self._one_by_one(scorer, shots, support, posterior, balance)
            rows = many[0].nonzero()[:, 0]
            mask = None if support.mask is None else support.mask[:, rows]
            support = Support(support.features[:, rows], mask)
        slope, offset = balance.of_shots(shots)  # [E, n]
        if posterior.as_counted:
            counted = shots[:, rows].double()
            offset = offset - posterior.shares(counted).log().to(offset.dtype).unsqueeze(1)
            offset[:, rows] += (counted / counted.mean(1, keepdim=True)).log().to(offset.dtype)
        else:
            offset = offset + log_odds(torch.full_like(slope, HALF, dtype=torch.float64), len(self.base))
        start = unit(scorer.novel) * (balance.gain * slope).unsqueeze(2)
        length = torch.linalg.vector_norm(start, dim=2).clamp(min=1e-12)
        stride = posterior.stride(len(rows), support.features.shape[2])
        base, mass = self._base_scores(posterior, balance.gain, stride, anew)
        if anew:
            start = posterior.beside_regressed(start, balance.gain * unit(self.base))
        features, own_mass = self._seen(support.features, base)
        found, intercept = posterior.fit(start, offset, base, rows, features, support.mask, mass, own_mass)
        longer = torch.linalg.vector_norm(found, dim=2) / length
        slope, offset = scorer.slope * longer.unsqueeze(1), scorer.offset + intercept.unsqueeze(1)
        fitted = replace(scorer, novel=found, slope=slope, offset=offset)
        if not anew or scorer.base is None:
            return fitted
        lengths = torch.linalg.vector_norm(base[:, :-1], dim=1)
        own: dict[str, Any] = {
            "base": base[:, :-1],
            "base_slope": lengths / balance.gain,
            "base_offset": base[:, -1],
        }
        return replace(fitted, **own)

    def _base_scores(
        self, posterior: Posterior, gain: float, stride: int, anew: bool
    ) -> tuple[Tensor, Tensor]:
        """Base weights as long as their scores want it, and their mass for base images ``[A]``.

        ``[N, D]`` or, where they are those of a regression, with intercepts ``[N, D + 1]``.
        """
        if self._known is None or self._known[:2] != (posterior, gain):
            self._known = (posterior, gain, {})
        known = self._known[2]
        if anew not in known:
            base = posterior.regressed if anew else gain * unit(self.base)
            assert base is not None
            known[anew] = (base.to(self.base), {})
        base, masses = known[anew]
        if stride not in masses:
            masses[stride] = posterior.mass(base, stride)
        return base, masses[stride]

    def _seen(self, examples: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Examples ``[E, m, K, D]`` in the method's space, and their mass beside the base classes.

        Of many classes each by itself, so that not even the last digit depends on when one was added.
        """
        if len(examples) > 1 or examples.shape[1] <= TOGETHER or examples.is_cuda:
            return self._look(examples, base)
        known = self._last[1] if self._last[0] is base else {}
        kept: dict[bytes, tuple[Tensor, Tensor]] = {}
        keys = [hashlib.sha256(some.contiguous().numpy()).digest() for some in examples[0]]
        for key, some in zip(keys, examples[0], strict=True):
            kept[key] = known[key] if key in known else self._look(some, base)
        self._last = (base, kept)
        features, mass = zip(*(kept[key] for key in keys), strict=True)
        return torch.stack(features)[None], torch.stack(mass)[None]

    def _look(self, examples: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        features = unit(examples) if self.space is None else self.space.features(examples)
        return features, mass_of(features, base)

    def _one_by_one(
        self,
        scorer: BalancedScorer,
        shots: Tensor,
        support: Support,
        posterior: Posterior,
        balance: Calibration,
    ) -> WeightScorer:
        """Episodes in which different classes have enough shots."""
        found = []
        for e in range(len(shots)):
            mask = None if support.mask is None else support.mask[e : e + 1]
            one = replace(scorer, **{k: getattr(scorer, k)[e : e + 1] for k in _FITTED})
            own = Support(support.features[e : e + 1], mask)
            found.append(self.fit(one, shots[e : e + 1], own, None, posterior, balance))
        fitted: dict[str, Any] = {k: torch.cat([getattr(one, k) for one in found]) for k in _FITTED}
        if any(getattr(one, "base_slope", None) is not None for one in found):
            N = len(self.base)
            whole = [_with_base(one, N) for one in found]
            fitted |= {k: torch.cat([one[i] for one in whole]) for i, k in enumerate(_BASE_FITTED)}
        return replace(scorer, **fitted)


def _with_base(scorer: WeightScorer, n_base: int) -> tuple[Tensor, Tensor, Tensor]:
    """Base weights ``[1, N, D]`` of one episode, and slopes and offsets of their scores ``[1, 1, N]``."""
    assert isinstance(scorer, BalancedScorer) and scorer.base is not None
    slope, offset = scorer.base_slope, scorer.base_offset
    if slope is None or offset is None:
        slope, offset = scorer.base.new_ones(n_base), scorer.base.new_zeros(n_base)
    return scorer.base.expand(1, n_base, -1), slope.expand(1, 1, -1), offset.expand(1, 1, -1)
