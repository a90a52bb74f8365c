"""Each class tested on pictures that it has not learned from: what it is taken for, what to expect of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.head import Head
from wdae.classifier.model import Model
from wdae.classifier.names import shorten
from wdae.methods.calibration import SHOTS, WAYS, step_for
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

CONFUSED = 0.35
"""Share of pictures of two classes taken for each other from which on they nearly coincide (chosen on
validation classes, for warnings about one sound class in twenty)."""
_ALONE, _TIMES = 0.5, 3  # the same where only examples of the one could be tried, and how many at least
MORE = 5
"""Pictures more, of which it is said what they would bring."""

_MOST = 10  # examples of a class that are left out in turn
_NEAREST = 3  # added classes whose examples are left out too
_NUMBERS = (*SHOTS, 50)  # of examples that pseudo-novel classes are tried with
_EPISODES, _QUERIES = 12, 30
_STRONGEST = 40.0  # examples that what is known of other classes counts for at most
_ACCURACY, _STRENGTH, _GAIN = "accuracy_added_", "strength_added_", "gain_added_"


@dataclass(frozen=True)
class Confusion:
    """Another class, and the share of pictures of the two that are taken for each other.

    ``alone`` where no pictures of the other could be tried, as of a class learned without held-out pictures.
    """

    name: str
    share: float
    count: int
    alone: bool = False


@dataclass(frozen=True)
class Expected:
    """Accuracy that is expected of an added class among all classes, now and with MORE examples more."""

    now: float
    more: float


@dataclass(frozen=True)
class SelfTest:
    """Pictures of a class that it has not learned from: how many, how many are recognised, and confusions."""

    n: int
    right: int
    confusions: tuple[Confusion, ...]

    def mistaken(self, other: Confusion) -> str:
        """What the share of a confusion is a share of; where nothing was tried, of the other's pictures."""
        if other.alone:
            return f"its examples, each left out in turn, are taken for {shorten(other.name)!r}"
        if self.n:
            return "pictures of the two are mistaken for each other"
        return f"pictures of {shorten(other.name)!r} are taken for it"


@torch.no_grad()
def self_test(model: Model, name: str) -> SelfTest:
    """Test a class: an added one on its examples, each left out in turn, a base class on held-out pictures.

    >>> from wdae import learn, synthetic_bank
    >>> bank = synthetic_bank(12, 0, 2, 30, 16, seed=0, held_out_per_class=10)
    >>> model = learn(bank, method="initial-estimate")
    >>> model.add({"okapi": bank.select(Part.NOVEL).of_class(0)[:5]})
    >>> self_test(model, "okapi").n, self_test(model, model.names[0]).n
    (5, 10)
    """
    place, head = model.names.index(name), model.head
    own = _predicted(model, name)
    taken: dict[int, list[tuple[int, int]]] = {}
    for other, count in zip(*own.unique(return_counts=True), strict=True):
        if int(other) != place:
            taken.setdefault(int(other), []).append((int(count), len(own)))
    held_out = model.base.held_out
    if held_out is not None and place >= head.n_base:
        found = model.unlearned_head.likeliest(held_out.features.float())
        counts = torch.bincount(held_out.labels, minlength=head.n_base)
        for other, count in enumerate(
            torch.bincount(held_out.labels[found == place], minlength=head.n_base).tolist()
        ):
            if count or (other in taken and int(counts[other])):
                taken.setdefault(other, []).append((count, int(counts[other])))
    similar = head.added @ head.weights[place]
    for near in similar.topk(min(_NEAREST + 1, len(similar))).indices.tolist():
        other = head.n_base + near
        if other != place and len(theirs := _predicted(model, model.names[other])):
            count = int((theirs == place).sum())
            if count or other in taken:
                taken.setdefault(other, []).append((count, len(theirs)))
    alone = {c for c in taken if c < head.n_base <= place and held_out is None}
    confusions = [
        Confusion(
            model.names[c],
            sum(k / n for k, n in pairs) / (2 if len(own) and c not in alone else 1),
            sum(k for k, _ in pairs),
            c in alone,
        )
        for c, pairs in taken.items()
    ]
    right = int((own == place).sum())
    return SelfTest(len(own), right, tuple(sorted(confusions, key=lambda one: -one.share)))


_KEPT: WeakKeyDictionary[Head, dict[str, Tensor]] = WeakKeyDictionary()
"""What was found of a state of a model: classes are tried out as neighbours of each other, too."""


def _predicted(model: Model, name: str) -> Tensor:
    """The classes that pictures of a class are taken for that it has not learned from."""
    kept = _KEPT.setdefault(model.head, {})
    if name not in kept:
        kept[name] = _tried(model, name)
    return kept[name]


def _tried(model: Model, name: str) -> Tensor:
    rows, place = model.state.get(name, ()), model.names.index(name)
    if place < model.head.n_base:
        held_out = model.base.held_out
        if held_out is None:
            return torch.zeros(0, dtype=torch.int64)
        return model.unlearned_head.likeliest(held_out.features[held_out.labels == place].float())
    if len(rows) < 2:
        return torch.zeros(0, dtype=torch.int64)
    every = -(-len(rows) // _MOST)
    found = [
        model.without(name, row).head.best(model.examples[row].feature.unsqueeze(0)) for row in rows[::every]
    ]
    return torch.cat(found)


def coinciding(found: SelfTest) -> Confusion | None:
    """The class that another one nearly coincides with, if there is one."""
    worst = found.confusions[0] if found.confusions else None
    if worst is None:
        return None
    share, times = (_ALONE, _TIMES) if worst.alone else (CONFUSED, 2)
    return worst if worst.share >= share and worst.count >= times else None


@torch.no_grad()
def accuracy_by_shots(base: BaseKnowledge, bank: FeatureBank, seed: int) -> dict[str, float]:
    """Accuracies of pseudo-novel classes that are added to a model, for numbers of shots; its figures.

    The strength is how many examples of a class of its own they are worth, from how much classes differ. The
    gain is what a class wins, in log odds, that gets MORE examples more while the others get none.
    """
    if len(bank.classes_of(Part.VALIDATION)) < WAYS:
        return {}
    pool, n_base = bank.select(Part.VALIDATION), len(base.names)
    generator = torch.Generator().manual_seed(derive_seed(seed, "enough"))
    figures: dict[str, float] = {}
    for n_shot in _NUMBERS:
        n_query = min(_QUERIES, int(pool.counts.min()) - n_shot - MORE)
        shares, after = [], []
        for _ in range(_EPISODES if n_query > 0 else 0):
            classes = torch.randperm(pool.n_classes, generator=generator)[:WAYS].tolist()
            orders = [torch.randperm(int(pool.counts[c]), generator=generator) for c in classes]
            rows = [pool.of_class(c)[order] for c, order in zip(classes, orders, strict=True)]
            model = Model(base)
            model.add({f"pseudo-novel {i}": some[:n_shot] for i, some in enumerate(rows)})
            before = model.head
            for i, some in enumerate(rows):
                given, asked = some[n_shot : n_shot + MORE], some[n_shot + MORE :][:n_query]
                shares.append(float((before.best(asked) == n_base + i).double().mean()))
                model.add({f"pseudo-novel {i}": given}, update=True)
                after.append(float((model.head.best(asked) == n_base + i).double().mean()))
                model.undo()
        if shares:
            values = torch.tensor(shares, dtype=torch.float64)
            mean, more = (min(max(sum(some) / len(some), 0.01), 0.99) for some in (shares, after))
            spread = max(float(values.var()) - mean * (1 - mean) / n_query, 1e-4)
            strength = min(max(mean * (1 - mean) / spread - 1, 1.0), _STRONGEST)
            figures |= {f"{_ACCURACY}{n_shot}": mean, f"{_STRENGTH}{n_shot}": strength}
            figures[f"{_GAIN}{n_shot}"] = max(_logit(more) - _logit(mean), 0.0)
    return figures


def expected(model: Model, name: str, found: SelfTest) -> Expected | None:
    """What is to be expected of an added class, from other classes and from its own examples."""
    figures = model.base.calibration.figures
    means, strengths = (_by_shots(figures, key) for key in (_ACCURACY, _STRENGTH))
    if not means or name in model.base.names:
        return None
    shots = model.shots(name)
    usual, strength = step_for(shots, means), step_for(shots, strengths)
    before = step_for(max(1, shots - 1), means)  # what was left out was asked with one example fewer
    hits = found.right + found.n * (usual - before)
    now = min(max((strength * usual + hits) / (strength + found.n), 0.01), 0.99)
    gains = _by_shots(figures, _GAIN) or _gains(means)
    return Expected(now, 1 / (1 + math.exp(-_logit(now) - _gain(shots, gains))))


def _gain(shots: int, gains: Mapping[int, float]) -> float:
    """What MORE examples bring, in log odds; beyond what was tried, as much as the same share of examples."""
    if not gains:
        return 0.0
    fewer = math.log1p(MORE / shots) / math.log1p(MORE / max(gains))
    return step_for(shots, gains) * min(1.0, fewer)


def _gains(means: Mapping[int, float]) -> dict[int, float]:
    """The same from accuracies, for models of before: at each number of shots from this and the next one."""
    return {
        low: max(_logit(means[high]) - _logit(means[low]), 0.0)
        * math.log1p(MORE / low)
        / math.log(high / low)
        for low, high in itertools.pairwise(sorted(means))
    }


def _by_shots(figures: Mapping[str, float], key: str) -> dict[int, float]:
    return {int(k.removeprefix(key)): float(v) for k, v in figures.items() if k.startswith(key)}


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
