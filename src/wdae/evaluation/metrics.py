"""Accuracies of an episode, from the scores of its queries.

==============  ==========================  =========================================
metric          queries                     classes they are scored among
==============  ==========================  =========================================
novel           novel                       novel
base            base                        base
all             novel and base together     all
all_prior       novel and base together     all, with a prior over the two kinds
novel_in_all    novel                       all
base_in_all     base                        all
harmonic        harmonic mean of the two rows above, episode by episode
area            below the base–novel curve, all offsets of novel scores (:mod:`wdae.evaluation.curve`)
==============  ==========================  =========================================

``_top5`` behind a name counts a query as right when its class is among the five highest scores.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wdae.evaluation.curve import areas

NOVEL_PRIOR = 0.8  # the authors' code weighs novel and base classes 0.8 to 0.2


def hits(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether each query's class is among its k highest scores: ``[E, Q, C]``, ``[E, Q]`` → ``[E, Q]``."""
    if k == 1:
        return scores.argmax(-1) == labels
    return (scores.topk(min(k, scores.shape[-1]), dim=-1).indices == labels.unsqueeze(-1)).any(-1)


def with_prior(scores: Tensor, n_base: int) -> Tensor:
    """Log-probabilities where novel and base classes are each normalised apart, then weighed."""
    base = torch.log_softmax(scores[..., :n_base], -1) + math.log(1 - NOVEL_PRIOR)
    novel = torch.log_softmax(scores[..., n_base:], -1) + math.log(NOVEL_PRIOR)
    return torch.cat([base, novel], dim=-1)


def novel_hits(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Right or wrong where novel classes alone were scored: ``[E, Q, n]``, labels ``0..n-1`` → ``[E, Q]``."""
    values = {"novel": hits(scores, labels)}
    if scores.shape[-1] > 5:
        values["novel_top5"] = hits(scores, labels, 5)
    return values


def novel_accuracy(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """:func:`novel_hits`, one value an episode ``[E]``."""
    return {name: right.float().mean(-1) for name, right in novel_hits(scores, labels).items()}


def joint_hits(scores: Tensor, labels: Tensor, n_base: int) -> dict[str, Tensor]:
    """Right or wrong, query by query, for queries of base and novel classes mixed, and where they turn.

    Shapes: scores ``[E, Q, n_base + n]``, labels ``[E, Q]`` over all classes → ``[E, Q]`` for each of
    ``own`` (among base or among novel classes), ``all``, ``all_prior``, and the same with ``_top5``;
    ``flips``: the offset of novel scores above which the answer is a novel class.
    """
    is_novel = labels >= n_base
    base, novel = scores[..., :n_base], scores[..., n_base:]
    best_base, base_class = base.max(-1)
    best_novel, novel_class = novel.max(-1)
    novel_class = novel_class + n_base
    base_prior = best_base - base.logsumexp(-1) + math.log(1 - NOVEL_PRIOR)
    novel_prior = best_novel - novel.logsumexp(-1) + math.log(NOVEL_PRIOR)
    values = {
        "own": torch.where(is_novel, novel_class, base_class) == labels,
        "all": torch.where(best_novel > best_base, novel_class, base_class) == labels,
        "all_prior": torch.where(novel_prior > base_prior, novel_class, base_class) == labels,
        "flips": best_base - best_novel,
    }
    if scores.shape[-1] - n_base > 5:
        place = torch.arange(scores.shape[-1], device=scores.device)
        other_kind = (place >= n_base) != is_novel.unsqueeze(-1)
        values["own_top5"] = hits(scores.masked_fill(other_kind, -torch.inf), labels, 5)
        values["all_top5"] = hits(scores, labels, 5)
        values["all_prior_top5"] = hits(with_prior(scores, n_base), labels, 5)
    return values


def joint_accuracy(right: dict[str, Tensor], is_novel: Tensor) -> dict[str, Tensor]:
    """The table above from :func:`joint_hits`, one value an episode; ``is_novel`` is ``[E, Q]``."""
    values: dict[str, Tensor] = {}
    novel, base = is_novel.float(), (~is_novel).float()
    n_novel, n_base = novel.sum(-1), base.sum(-1)
    for suffix in ("", "_top5") if "all_top5" in right else ("",):
        own, joint = right["own" + suffix].float(), right["all" + suffix].float()
        values["novel" + suffix] = (own * novel).sum(-1) / n_novel
        values["base" + suffix] = (own * base).sum(-1) / n_base
        values["all" + suffix] = joint.mean(-1)
        values["all_prior" + suffix] = right["all_prior" + suffix].float().mean(-1)
        novel_in_all = (joint * novel).sum(-1) / n_novel
        base_in_all = (joint * base).sum(-1) / n_base
        values["novel_in_all" + suffix], values["base_in_all" + suffix] = novel_in_all, base_in_all
        total = (novel_in_all + base_in_all).clamp(min=1e-12)
        values["harmonic" + suffix] = 2 * novel_in_all * base_in_all / total
    values["area"] = areas(right["flips"], right["own"], is_novel)
    return values
