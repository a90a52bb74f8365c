"""Pseudo-novel classes: known classes that play novel, so that something can be chosen before real ones come.

They are the validation classes beside all base classes or, where there are none, some of the base classes
beside the others. A bank's novel classes are never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.methods.base import BaseClasses, Support, WeightScorer, base_classes
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import WeightGenerator
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.generate import novel_estimate
from wdae.nn.incremental import BaseState
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

Where = Literal["validation", "base"]
Weighing = WDAE | InitialEstimate
"""Methods whose outcome is class weights, with ε and a balance to find; what a model can be taught by."""
Generating = Weighing | WeightGenerator
"""The same and those of other papers, with a balance to find."""

_FOLDS = 4  # of base classes that play novel in turn
_SHARE = 0.2  # of base classes that are set aside as validation classes
_UNUSED = -1e4  # the score of a column that has no class


@dataclass(frozen=True)
class Split:
    """Pseudo-novel classes, and base classes with held-out images."""

    pool: ClassSet
    base: BaseClasses
    held_out: ClassSet


def where_to_play(bank: FeatureBank) -> Where | None:
    """Which of a bank's classes can be pseudo-novel; None where no base images are held out."""
    if not bank.has(Part.BASE_HELD_OUT):
        return None
    return "validation" if len(bank.classes_of(Part.VALIDATION)) >= 2 else "base"


def splits(
    bank: FeatureBank,
    where: Where,
    device: torch.device | str = "cpu",
    images: int = 0,
    at_once: int = 0,
) -> list[Split]:
    """The validation classes beside all base classes, or a quarter of the base classes at a time.

    A base class plays novel with its held-out images; those that it was learned from join them where it has
    fewer than ``images``. Where a quarter is less than ``at_once`` classes, up to a half of them plays.
    """
    base = base_classes(bank, device)
    held_out = bank.select(Part.BASE_HELD_OUT, device=device)
    if where == "validation":
        return [Split(bank.select(Part.VALIDATION, device=device), base, held_out)]
    filled = held_out.counts.nonzero().flatten()
    if len(filled) < 3:
        return []
    smallest = 2 if len(filled) >= 5 else 1  # classes that play novel together
    folds = min(_FOLDS, max(2, len(filled) // max(1, at_once)))
    found = []
    for fold in range(folds):
        novel = filled[fold::folds]
        stays = torch.ones(held_out.n_classes, dtype=torch.bool, device=held_out.device)
        stays[novel] = False
        kept = stays.nonzero().flatten()
        if len(novel) >= smallest and bool(held_out.counts[kept].any()):
            weights = BaseClasses(base.weights[kept], base.scale)
            found.append(Split(_pool(bank, held_out, novel, images), weights, _some(held_out, kept)))
    return found


def halves(found: Sequence[Split]) -> list[Sequence[Split]]:
    """Two sets of splits with different pseudo-novel classes; the same twice where there are too few."""
    if len(found) > 1:
        return [found[::2], found[1::2]]
    pool = found[0].pool
    if pool.n_classes < 4:
        return [found, found]
    parts = [_some(pool, torch.arange(i, pool.n_classes, 2, device=pool.device)) for i in (0, 1)]
    return [[replace(found[0], pool=part)] for part in parts]


def set_aside(bank: FeatureBank, images: int, most: int, seed: int) -> FeatureBank:
    """The bank that a method is trained on: its validation classes, or a fifth of the base classes as such.

    Args:
        images: a class set aside is left with its held-out images alone where all have so many: others may be
            known to the backbone.
        most: base classes that stay; of more, some are drawn.
    """
    counts = torch.tensor(bank.counts(Part.BASE_TRAIN))
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(derive_seed(seed, "cast")))
    asides = order[:0]
    if not bank.has(Part.VALIDATION):
        n_aside = max(2, round(_SHARE * len(order)))
        asides, order = order[: min(n_aside, most // 2)], order[n_aside:]
    stays = order[counts[order] >= 2][:most].sort().values
    if not len(asides) and len(stays) == len(counts):
        return bank
    names = torch.tensor(bank.base_classes)
    parts, wanted = bank.parts.clone(), torch.isin(bank.labels, names[stays])
    wanted |= parts == Part.VALIDATION.code
    aside = torch.isin(bank.labels, names[asides])
    held_out = aside & (parts == Part.BASE_HELD_OUT.code)
    there = torch.bincount(bank.labels[held_out], minlength=len(bank.class_names))
    if len(asides) and int(there[names[asides]].min()) >= images:
        aside = held_out
    parts[aside] = Part.VALIDATION.code
    rows = (wanted | aside).nonzero().flatten()
    weights = None if bank.base_weights is None else bank.base_weights[stays]
    return replace(
        bank,
        features=bank.features[rows],
        scales=None if bank.scales is None else bank.scales[rows],
        labels=bank.labels[rows],
        parts=parts[rows],
        base_weights=weights,
        query_only=None if bank.query_only is None else bank.query_only[rows],
    )


@dataclass(frozen=True)
class QueryScores:
    """Scores of M queries beside pseudo-novel classes, base scores reduced to sufficient statistics.

    Shapes: mass (log of the sum of base scores' exponentials), own (score of the query's base class), best
    (highest base score), best_right ``[M]``; novel ``[M, n]`` with the gain of base classes, very low where a
    column is unused; place ``[M]``: the query's column of ``novel``, -1 for a base class; prior ``[M]``: log
    of how much likelier a pseudo-novel class is than a base class.
    """

    mass: Tensor
    own: Tensor
    best: Tensor
    best_right: Tensor
    novel: Tensor
    place: Tensor
    prior: Tensor

    @classmethod
    def of(cls, base: Tensor, novel: Tensor, labels: Tensor) -> QueryScores:
        """From scores ``[M, N]`` and ``[M, n]`` and labels ``[M]``, base first.

        Half of the queries are of either kind: a novel class is N / n times as likely as a base class.
        """
        n_base, n = base.shape[1], novel.shape[1]
        best = base.max(1)
        own = base.gather(1, labels.clamp(max=n_base - 1).unsqueeze(1))[:, 0].double()
        place = torch.where(labels >= n_base, labels - n_base, -1)
        prior = own.new_full((len(labels),), math.log(n_base / n))
        right = best.indices == labels
        return cls(base.double().logsumexp(1), own, best.values, right, novel.double(), place, prior)

    @classmethod
    def joined(cls, parts: Sequence[QueryScores]) -> QueryScores:
        """Several as one."""
        width = max(part.novel.shape[1] for part in parts)
        parts = [
            replace(part, novel=F.pad(part.novel, (0, width - part.novel.shape[1]), value=_UNUSED))
            for part in parts
        ]
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @property
    def is_novel(self) -> Tensor:
        """Which queries are of pseudo-novel classes ``[M]``."""
        return self.place >= 0

    def right(self, slope: float, offset: float) -> Tensor:
        """Which queries find their class among base and novel classes ``[M]``."""
        top = self.novel.max(1)
        won = slope * top.values + offset + self.prior > self.best
        return torch.where(won, top.indices == self.place, self.best_right)

    def accuracy(self, slope: float, offset: float) -> float:
        """Accuracy among base and novel classes; queries of both kinds count half each."""
        right, is_novel = self.right(slope, offset).double(), self.is_novel
        return 0.5 * float(right[is_novel].mean() + right[~is_novel].mean())

    def base_accuracy(self) -> float:
        """Accuracy of base queries among base classes."""
        return float(self.best_right[~self.is_novel].double().mean())

    def confidence(self, slope: float, offset: float) -> Tensor:
        """The probability of the most probable class ``[M]``."""
        scores, mass = self._all_scores(slope, offset)
        return (torch.maximum(scores.amax(1), self.best) - mass).exp()

    def loss(self, slope: float | Tensor, offset: float | Tensor) -> Tensor:
        """Mean of minus the log probability of the true class; queries of both kinds count half each."""
        scores, mass = self._all_scores(slope, offset)
        wanted = scores.gather(1, self.place.clamp(min=0).unsqueeze(1))[:, 0]
        lost = mass - torch.where(self.is_novel, wanted, self.own)
        return 0.5 * (lost[self.is_novel].mean() + lost[~self.is_novel].mean())

    def _all_scores(self, slope: float | Tensor, offset: float | Tensor) -> tuple[Tensor, Tensor]:
        scores = slope * self.novel + offset + self.prior.unsqueeze(1)
        return scores, torch.logaddexp(self.mass, scores.logsumexp(1))


@torch.no_grad()
def play(
    method: Generating,
    found: Sequence[Split],
    n_shot: int,
    gain: float,
    steps: Sequence[float],
    *,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
) -> dict[float, tuple[QueryScores, float]]:
    """Episodes with as many base as novel queries: for each ε their scores, and accuracy among novel classes.

    Empty where a pseudo-novel class has too few images for so many shots and a query.
    """
    query = min(n_query, min(int(split.pool.counts.min()) for split in found) - n_shot)
    if query < 1:
        return {}
    each = max(1, n_episodes // len(found))
    played = [
        _play(
            method,
            split,
            EpisodeSpec(min(n_way, split.pool.n_classes), (n_shot,), query),
            gain,
            steps,
            each,
            derive_seed(seed, n_shot, number),
        )
        for number, split in enumerate(found)
    ]
    return {
        step: (
            QueryScores.joined([one[step][0] for one in played]),
            sum(one[step][1] for one in played) / len(played),
        )
        for step in steps
    }


def _play(
    method: Generating,
    split: Split,
    spec: EpisodeSpec,
    gain: float,
    steps: Sequence[float],
    n_episodes: int,
    seed: int,
) -> dict[float, tuple[QueryScores, float]]:
    """One pass of the denoiser serves all ε: a moved weight is a mix of two directions, and so are its
    products with queries. Several refinements are computed for each ε."""
    pool, n, Q = split.pool, spec.n_novel, spec.n_query
    spec = EpisodeSpec(n, spec.n_shot, Q, n * Q)
    sampler = EpisodeSampler(pool, spec, seed, base_query=split.held_out)
    adapter = method.on(split.base) if isinstance(method, WDAE) else None
    state = None if adapter is None else adapter.state
    base_moves = isinstance(method, WDAE) and method.refine_base
    several = isinstance(method, WDAE) and method.n_steps > 1
    unmoved = unit(split.base.weights.float()) if state is None else state.base
    device, N = pool.device, len(unmoved)
    chunk = min(chunk_for(device), 256)
    found: dict[float, list[QueryScores]] = {step: [] for step in steps}
    hits = dict.fromkeys(steps, 0.0)
    for start in range(0, n_episodes, chunk):
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        shots = take_rows(pool.features, episodes.support)
        if isinstance(method, WeightGenerator):
            initial = unit(method.novel_weights(Support(shots), split.base))
        else:
            initial = novel_estimate(shots)
        queries = torch.cat(
            [
                take_rows(pool.features, episodes.query.flatten(1)),
                take_rows(split.held_out.features, episodes.base_query),
            ],
            dim=1,
        )
        own = N + torch.arange(n, device=device).repeat_interleave(Q).expand(len(episodes), -1)
        labels = torch.cat([own, episodes.base_query_label], dim=1)
        end, base_end = initial, unmoved
        if state is not None and not several:
            refined = state.refine(initial, with_base=base_moves)
            end = unit(refined.novel)
            if base_moves:
                base_end = _base_after(state, refined.episode, refined.node, refined.base, len(episodes))
        novel = _Between.of(queries, initial, end)
        base = _Between.of(queries, unmoved.expand_as(base_end), base_end)
        first: QueryScores | None = None
        for step in steps:
            if several and adapter is not None:
                novel, base = _after_several(adapter.moved(initial, step, joint=True), queries)
            scores = gain * novel.at(step)
            hits[step] += float((scores[:, : n * Q].argmax(-1) == own - N).float().mean(1).sum())
            if first is None or base_moves:
                first = QueryScores.of(
                    (gain * base.at(step)).flatten(0, 1), scores.flatten(0, 1), labels.flatten()
                )
            found[step].append(replace(first, novel=scores.flatten(0, 1).double()))
    return {step: (QueryScores.joined(found[step]), hits[step] / n_episodes) for step in steps}


@dataclass(frozen=True)
class _Between:
    """Cosines of queries with ``(1 − ε) u + ε v`` for unit u and v, from those with u and v.

    Shapes: from_start, from_end ``[E, Q, n]``; between (cosines of u with v) ``[E, 1, n]``.
    """

    from_start: Tensor
    from_end: Tensor
    between: Tensor

    @staticmethod
    def of(queries: Tensor, start: Tensor, end: Tensor) -> _Between:
        between = (start * end).sum(-1).unsqueeze(-2)
        return _Between(queries @ start.transpose(-1, -2), queries @ end.transpose(-1, -2), between)

    def at(self, step: float) -> Tensor:
        length = ((1 - step) ** 2 + step**2 + 2 * step * (1 - step) * self.between).clamp(min=1e-12).sqrt()
        return torch.lerp(self.from_start, self.from_end, step) / length


def _after_several(moved: WeightScorer, queries: Tensor) -> tuple[_Between, _Between]:
    """Cosines with novel and base weights that lie where ε has brought them: whatever ε is asked for."""
    assert moved.base is not None
    novel, base = unit(moved.novel), unit(moved.base)
    return _Between.of(queries, novel, novel), _Between.of(queries, base, base)


def _base_after(state: BaseState, episode: Tensor, node: Tensor, changed: Tensor, n_episodes: int) -> Tensor:
    """Unit reconstructions of the base classes, ``[E, N, D]``."""
    end = unit(state.reconstructed).repeat(n_episodes, 1, 1)
    end[episode, node] = unit(changed)
    return end


def _some(images: ClassSet, classes: Tensor) -> ClassSet:
    """Some classes of a set; rows stay where they are."""
    names = tuple(images.names[i] for i in classes.tolist())
    return ClassSet(images.features, images.starts[classes], images.counts[classes], names)


def _pool(bank: FeatureBank, held_out: ClassSet, classes: Tensor, images: int) -> ClassSet:
    """The held-out images of some base classes or, where these are too few, all of their images."""
    if int(held_out.counts[classes].min()) >= images:
        return _some(held_out, classes)
    train = bank.select(Part.BASE_TRAIN, device=held_out.device)
    groups = [torch.cat([part.of_class(c) for part in (train, held_out)]) for c in classes.tolist()]
    counts = torch.tensor([len(group) for group in groups], device=held_out.device)
    names = tuple(held_out.names[c] for c in classes.tolist())
    return ClassSet(torch.cat(groups), counts.cumsum(0) - counts, counts, names)
