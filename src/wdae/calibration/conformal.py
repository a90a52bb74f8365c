"""Sets of classes that hold the true one as often as is asked for: split conformal prediction.

A class is in the set of a picture if its probability reaches a threshold: the one that all but a chosen share
of calibration pictures reach with their own class (Vladimir Vovk et al., "Algorithmic Learning in a Random
World", 2005; for classes, Mauricio Sadinle et al., 2019, https://arxiv.org/abs/1609.00451). Base and added
classes have thresholds of their own, so that either kind is covered: base classes from held-out pictures,
added ones from pseudo-novel classes of as many shots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.calibration.pseudo_novel import Split, Weighing
from wdae.episodes import EpisodeSampler, EpisodeSpec, take_rows
from wdae.methods.base import gather_support
from wdae.methods.calibration import WAYS
from wdae.methods.records import RISKS
from wdae.nn.cosine import unit
from wdae.runtime.randomness import derive_seed

_EPISODES, _QUERIES, _BASE_QUERIES = 40, 15, 150
_CHUNK = 8

Thresholds = tuple[float, ...]
"""For each of RISKS, the probability that a class must have."""


@torch.no_grad()
def fit_sets(
    method: Weighing,
    held_out: ClassSet,
    weights: Tensor,
    found: Sequence[Split],
    shots: Sequence[int],
    *,
    seed: int = 0,
) -> dict[int, tuple[Thresholds, ...]]:
    """Thresholds of base and of added classes, by number of shots; for 0, of base classes alone.

    Args:
        method: with its balance and the share of novel images that it expects.
        held_out: base images, and ``weights`` ``[N, D]`` of their classes.
        found: pseudo-novel classes beside base classes with held-out images.
        shots: numbers of shots; those are left out that the classes have no images for.
    """
    assert method.balance is not None
    alone = (method.balance.gain * (held_out.features @ unit(weights).T)).softmax(1)
    sets: dict[int, tuple[Thresholds, ...]] = {
        0: (thresholds(alone.gather(1, held_out.labels.unsqueeze(1))[:, 0]),)
    }
    for n_shot in shots:
        ready = [split for split in found if int(split.pool.counts.min()) > n_shot]
        if ready:
            each = max(1, _EPISODES // len(ready))
            pairs = [_chances(method, split, n_shot, each, seed) for split in ready]
            base, added = (torch.cat(kind) for kind in zip(*pairs, strict=True))
            sets[n_shot] = (thresholds(base), thresholds(added))
    return sets


def _chances(
    method: Weighing, split: Split, n_shot: int, n_episodes: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Probabilities of their own class, of base and of novel queries of some episodes."""
    pool, n_way = split.pool, min(WAYS, split.pool.n_classes)
    n_query = min(_QUERIES, int(pool.counts.min()) - n_shot)
    spec = EpisodeSpec(n_way, (n_shot,), n_query, _BASE_QUERIES)
    sampler = EpisodeSampler(pool, spec, derive_seed(seed, "sets", n_shot), base_query=split.held_out)
    adapter, N = method.on(split.base), len(split.base.weights)
    base: list[Tensor] = []
    novel: list[Tensor] = []
    for start in range(0, n_episodes, _CHUNK):
        drawn = sampler.draw(start, min(_CHUNK, n_episodes - start))
        scorer = adapter.adapt(gather_support(pool, drawn), joint=True)
        own = N + torch.arange(n_way, device=pool.device).repeat_interleave(n_query)
        for queries, labels, kept in (
            (take_rows(split.held_out.features, drawn.base_query), drawn.base_query_label, base),
            (take_rows(pool.features, drawn.query.flatten(1)), own.expand(len(drawn), -1), novel),
        ):
            chances = scorer(queries).double().softmax(-1)
            kept.append(chances.gather(-1, labels.unsqueeze(-1)).flatten())
    return torch.cat(base), torch.cat(novel)


def thresholds(chances: Tensor) -> Thresholds:
    """The probability that all but a share of pictures reach with their own class, for each of RISKS.

    As many lie below as leave the true class out with no more than that chance, for a further picture too.

    >>> thresholds(torch.linspace(0.01, 0.99, 99))[-3:]  # the last: below all
    (0.03, 0.02, 0.01)
    >>> thresholds(torch.tensor([0.9, 0.8]))[:2]
    (0.8, 0.8)
    """
    ordered = chances.cpu().double().sort().values
    places = [int(risk * (len(ordered) + 1) + 1e-9) for risk in RISKS]
    return tuple(float(f"{float(ordered[place - 1]):.3g}") if place else 0.0 for place in places)
