"""Nearest-mean accuracy of features, straight from a class set: what stage 1 watches while it trains."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.episodes import EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.evaluation.metrics import novel_accuracy
from wdae.methods.base import WeightScorer
from wdae.nn.generate import novel_estimate


@torch.no_grad()
def nearest_mean_accuracy(
    class_set: ClassSet, n_way: int, n_shot: int, n_query: int, n_episodes: int, seed: int
) -> tuple[float, float]:
    """Mean accuracy and half-width of its 95 % interval over few-way episodes.

    >>> from wdae import Part, synthetic_bank
    >>> novel = synthetic_bank(8, 5, 6, 20, 8, seed=0, held_out_per_class=4).select(Part.NOVEL)
    >>> mean, ci95 = nearest_mean_accuracy(novel, n_way=5, n_shot=5, n_query=5, n_episodes=50, seed=0)
    >>> mean > 0.2
    True
    """
    sampler = EpisodeSampler(class_set, EpisodeSpec(n_way, (n_shot,), n_query), seed)
    chunk = chunk_for(class_set.device)
    values: list[Tensor] = []
    for start in range(0, n_episodes, chunk):
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        scorer = WeightScorer(novel_estimate(take_rows(class_set.features, episodes.support)), None, 1.0)
        labels = torch.arange(n_way, device=class_set.device).repeat_interleave(n_query)
        scores = scorer(take_rows(class_set.features, episodes.query.flatten(1)))
        values.append(novel_accuracy(scores, labels.expand(len(episodes), -1))["novel"])
    accuracy = torch.cat(values).double()
    return float(accuracy.mean()), float(1.96 * accuracy.std() / len(accuracy) ** 0.5)
