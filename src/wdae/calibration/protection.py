"""How often novel classes may be expected, so that base classes are protected first.

A novel class takes from base classes the images on which it scores higher; how many, depends on the share of
novel images that is expected. Research expects half, as the paper's evaluation has it. Whoever teaches a
model a few classes has old ones to lose: unless told otherwise, a model expects the largest share with which
five pseudo-novel classes cost held-out base images at most ``ALLOWED`` of their accuracy among all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wdae.calibration.pseudo_novel import Split, Weighing
from wdae.episodes import EpisodeSampler, EpisodeSpec, take_rows
from wdae.methods.base import gather_support
from wdae.methods.calibration import HALF, WAYS
from wdae.runtime.randomness import derive_seed

ALLOWED = 0.016
"""Accuracy among all classes that base images may lose when five classes are added.

Less than the two points that are meant: shares found on some classes cost others, that come later, more.
"""

MANY_SHOTS = (100, 500)
"""Shots that shares are found for beside those of the balance, where classes are fitted further: the more
shots such a class has, the more base images it takes at the same share."""

SMALLEST, LARGEST = 0.001, HALF
"""Where classes are far apart any share would do; more than half is nobody's default."""
_SCORES = 3e7  # base scores that a share is found on
_EPISODES, _QUERIES = 64, 500  # to adapt to shots takes longer than to score base images
_CHUNK, _CHUNK_SHOTS = 16, 320  # episodes at once, and shots of a class in all of them


@torch.no_grad()
def protecting_shares(
    method: Weighing,
    found: Sequence[Split],
    shots: Sequence[int],
    *,
    allowed: float = ALLOWED,
    seed: int = 0,
) -> dict[int, float]:
    """The largest protecting share by number of shots, for those that the classes have images for.

    Args:
        method: with its balance; the share that this has plays no part.
        found: pseudo-novel classes beside base classes with held-out images.
        shots: numbers of shots.
        allowed: what base images may lose when five classes are added.
    """
    if method.balance is None or not found:
        return {}
    kept = method.balance
    method.balance = replace(kept, novel_share=HALF)
    try:
        n_way = min(WAYS, *(split.pool.n_classes for split in found))
        shares = {}
        for n_shot in shots:
            if all(int(split.pool.counts.min()) >= n_shot for split in found):
                margins = [_margins(method, split, n_way, n_shot, seed) for split in found]
                shares[n_shot] = _share(torch.cat(margins), n_way, allowed)
        return shares
    finally:
        method.balance = kept


def _margins(method: Weighing, split: Split, n_way: int, n_shot: int, seed: int) -> Tensor:
    """How far the best novel class is ahead of the best base class, for each base query of many episodes.

    -inf for a query that its base class does not win among base classes: it has nothing to lose.
    """
    N = len(split.base.weights)
    episodes = max(_CHUNK, min(_EPISODES, int(_SCORES / (_QUERIES * N))))
    spec = EpisodeSpec(n_way, (n_shot,), 0, _QUERIES)
    sampler = EpisodeSampler(
        split.pool, spec, derive_seed(seed, "protect", n_shot), base_query=split.held_out
    )
    adapter, found = method.on(split.base), []
    chunk = max(1, min(_CHUNK, _CHUNK_SHOTS // n_shot))
    for start in range(0, episodes, chunk):
        drawn = sampler.draw(start, min(chunk, episodes - start))
        scorer = adapter.adapt(gather_support(split.pool, drawn), joint=True)
        scores = scorer(take_rows(split.held_out.features, drawn.base_query))
        best, place = scores[..., :N].max(-1)
        ahead = scores[..., N:].amax(-1) - best
        found.append(ahead.masked_fill(place != drawn.base_query_label, -torch.inf).flatten())
    return torch.cat(found)


def _share(margins: Tensor, n_way: int, allowed: float) -> float:
    """The largest share that turns no more than what is allowed of the queries to novel classes.

    >>> margins = torch.cat([torch.arange(-9.0, 1.0), torch.full((490,), -torch.inf)])
    >>> _share(margins, n_way=5, allowed=0.002), _share(margins + 3, 5, 0.002)
    (0.5, 0.1192)
    """
    n_lost = int(allowed * n_way / WAYS * len(margins))
    first = margins.topk(min(n_lost + 1, len(margins))).values[-1]  # the first that must stay
    half = torch.tensor(HALF * n_way / WAYS)
    share = torch.sigmoid(half.logit() - first) * WAYS / n_way
    return round(float(share.clamp(SMALLEST, LARGEST)), 4)
