"""The paper's protocols: few-way episodes (MiniImageNet) and all novel classes at once (ImageNet-FS)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.episodes import Episodes, EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.errors import EpisodeError
from wdae.evaluation.metrics import joint_accuracy, joint_hits, novel_accuracy, novel_hits
from wdae.evaluation.results import Estimate, Result
from wdae.methods.base import Adapter, BaseClasses, Method, Support, base_classes, gather_support, prepared
from wdae.methods.initial_estimate import InitialEstimate
from wdae.parts import Part
from wdae.runtime.cores import map_on_cores

OnProgress = Callable[[int], None]
"""Called with the number of episodes just done."""

_ALL_WAY_QUERIES = 4096  # queries scored at once in the all-way protocol


@torch.no_grad()
def few_way(
    method: Method,
    bank: FeatureBank,
    n_shot: int,
    *,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    joint: bool | None = None,
    part: Part = Part.NOVEL,
    device: torch.device | str = "cpu",
    chunk: int | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Episodes of a few novel classes; the base classes stay in the graph.

    *Novel* is the accuracy of the novel queries among the episode's novel classes. With ``joint`` there are
    as many base queries (held-out images), and *all* is the accuracy of both among base and novel classes.

    Args:
        method: what to evaluate.
        bank: where the episodes are drawn from.
        n_shot: support images of each novel class.
        n_way: novel classes of an episode.
        n_query: queries of each novel class.
        n_episodes: how many are drawn.
        seed: which ones; the same seed gives every method the same episodes.
        joint: ask for base and all accuracy too; by default wherever bank and method can give it.
        part: ``Part.NOVEL``, or ``Part.VALIDATION`` to choose something.
        device: where to work.
        chunk: episodes at once; affects speed alone.
        on_progress: called as episodes are done.

    >>> from wdae import InitialEstimate, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> result = few_way(InitialEstimate(), bank, n_shot=1, n_episodes=100)
    >>> result.metrics["novel"].mean > 0.2, result.per_episode["novel"].shape
    (True, (100,))
    """
    device = _ready(device, n_episodes)
    if joint is None:
        joint = method.joint and bank.has(Part.BASE_HELD_OUT)
    elif joint and not method.joint:
        raise EpisodeError(f"{method.name} scores novel classes only; evaluate it without base classes")
    elif joint and not bank.has(Part.BASE_HELD_OUT):
        raise EpisodeError("the bank has no held-out base images, which 'all' and 'base' accuracy need")
    pool = bank.select(part, device=device)
    held_out = bank.select(Part.BASE_HELD_OUT, device=device) if joint else None
    spec = EpisodeSpec(n_way, (n_shot,), n_query, n_way * n_query if joint else 0)
    sampler = EpisodeSampler(pool, spec, seed, base_query=held_out)
    adapter = prepared(method, bank, device).on(base_classes(bank, device))
    chunk = chunk or chunk_for(device)

    def one_chunk(start: int) -> dict[str, Tensor]:
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        return _few_way_chunk(adapter, pool, held_out, bank.n_base, episodes)

    values: list[dict[str, Tensor]] = []
    for value in map_on_cores(one_chunk, range(0, n_episodes, chunk), device):
        values.append(value)
        if on_progress is not None:
            on_progress(len(value["novel"]))
    return _result(
        values, method, bank, part, "few-way", n_way=n_way, n_shot=n_shot, seed=seed, n_query=n_query
    )


def _few_way_chunk(
    adapter: Adapter, pool: ClassSet, held_out: ClassSet | None, n_base: int, episodes: Episodes
) -> dict[str, Tensor]:
    E, n, Q = episodes.query.shape
    scorer = adapter.adapt(gather_support(pool, episodes), joint=held_out is not None)
    scores = scorer(take_rows(pool.features, episodes.query.flatten(1)))  # [E, n·Q, classes]
    labels = torch.arange(n, device=scores.device).repeat_interleave(Q).expand(E, -1)
    if held_out is None:
        return novel_accuracy(scores, labels)
    scores = torch.cat([scores, scorer(take_rows(held_out.features, episodes.base_query))], dim=1)
    labels = torch.cat([n_base + labels, episodes.base_query_label], dim=1)
    return joint_accuracy(joint_hits(scores, labels, n_base), labels >= n_base)


@torch.no_grad()
def nearest_mean_accuracy(
    class_set: ClassSet, n_way: int, n_shot: int, n_query: int, n_episodes: int, seed: int
) -> Estimate:
    """Nearest-mean accuracy of a class set in few-way episodes; stage 1 watches it while it trains.

    >>> from wdae import Part, synthetic_bank
    >>> novel = synthetic_bank(8, 5, 6, 20, 8, seed=0, held_out_per_class=4).select(Part.NOVEL)
    >>> nearest_mean_accuracy(novel, n_way=5, n_shot=5, n_query=5, n_episodes=50, seed=0).mean > 0.2
    True
    """
    (found,) = nearest_mean_accuracies([class_set], n_way, n_shot, n_query, n_episodes, seed)
    return found


@torch.no_grad()
def nearest_mean_accuracies(
    class_sets: Iterable[ClassSet], n_way: int, n_shot: int, n_query: int, n_episodes: int, seed: int
) -> list[Estimate]:
    """The same of class sets that differ in their features alone: episodes are drawn once for all."""
    episodes: list[Episodes] = []
    found = []
    for one in class_sets:
        sampler = EpisodeSampler(one, EpisodeSpec(n_way, (n_shot,), n_query), seed)
        episodes = episodes or list(sampler.batches(n_episodes))
        adapter = InitialEstimate().on(BaseClasses(one.features[:0]))
        values = [_few_way_chunk(adapter, one, None, 0, some)["novel"] for some in episodes]
        found.append(Estimate.of(torch.cat(values).cpu().numpy()))
    return found


@torch.no_grad()
def all_way(
    method: Method,
    bank: FeatureBank,
    n_shot: int,
    *,
    n_episodes: int = 100,
    seed: int = 0,
    part: Part = Part.NOVEL,
    base_queries: Collection[str] | None = None,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> Result:
    """All novel classes at once: K shots of each; every other novel image and held-out base image is a query.

    Where a bank marks novel images as queries only, shots are drawn from the others, and the queries are the
    marked ones, the same in every episode.

    Gives top-1 and top-5 of novel among novel, base among base, all among all, and all with a prior. Without
    held-out base images, or for a method that scores novel classes only, novel accuracy alone.
    ``base_queries`` names the base classes of the test, where not all are (ImageNet-FS tests on 196 of its
    389): their held-out images are the base queries, and no image is taken for one of the others.

    >>> from wdae import InitialEstimate, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> result = all_way(InitialEstimate(), bank, n_shot=2, n_episodes=5)
    >>> result.n_way, 0 < result.metrics["all"].mean < 1
    (6, True)
    """
    device = _ready(device, n_episodes)
    joint = method.joint and bank.has(Part.BASE_HELD_OUT)
    pool = bank.select(part, device=device)
    apart = bank.has_queries(part)
    novel = bank.select(part, queries=True, device=device) if apart else pool
    queries, labels = novel.features, novel.labels
    n_base = 0
    left_out = torch.zeros(0, dtype=torch.long, device=device)
    if joint:
        n_base = bank.n_base
        held_out = bank.select(Part.BASE_HELD_OUT, device=device)
        rows = _rows_of(held_out, base_queries)
        if base_queries is not None:
            untested = [c for c, name in enumerate(held_out.names) if name not in base_queries]
            left_out = torch.tensor(untested, dtype=torch.long, device=device)
        queries = torch.cat([queries, held_out.features[rows]])
        labels = torch.cat([n_base + labels, held_out.labels[rows]])
    sampler = EpisodeSampler(pool, EpisodeSpec(pool.n_classes, (n_shot,), 0), seed)
    if not apart and len(pool.features) == pool.n_classes * n_shot:
        raise EpisodeError(f"with {n_shot} shots no {part.value} image is left as a query; lower n_shot")
    adapter = prepared(method, bank, device).on(base_classes(bank, device))
    values: list[dict[str, Tensor]] = []
    for index in range(n_episodes):
        episode = sampler.draw(index, 1)
        order = episode.novel_classes[0].argsort()  # novel class c of the scorer is class c of the pool
        support = episode.support[:, order]
        scorer = adapter.adapt(Support(take_rows(pool.features, support)), joint=joint)
        is_query = torch.ones(len(labels), dtype=torch.bool, device=device)
        if not apart:
            is_query[support.flatten()] = False
        rows = is_query.nonzero().flatten()
        parts: list[dict[str, Tensor]] = []
        for some in rows.split(_ALL_WAY_QUERIES):
            scores, wanted = scorer(queries[some].unsqueeze(0)), labels[some].unsqueeze(0)
            scores = scores.index_fill(-1, left_out, -torch.inf)
            parts.append(joint_hits(scores, wanted, n_base) if joint else novel_hits(scores, wanted))
        right = {name: torch.cat([p[name] for p in parts], dim=1) for name in parts[0]}
        is_novel = (labels[rows] >= n_base).unsqueeze(0)
        values.append(
            joint_accuracy(right, is_novel) if joint else {k: v.float().mean(-1) for k, v in right.items()}
        )
        if on_progress is not None:
            on_progress(1)
    return _result(values, method, bank, part, "all-way", n_way=pool.n_classes, n_shot=n_shot, seed=seed)


def _ready(device: torch.device | str, n_episodes: int) -> torch.device:
    if n_episodes < 1:
        raise EpisodeError(f"n_episodes must be at least 1, got {n_episodes}")
    return torch.device(device)


def _result(
    values: Sequence[dict[str, Tensor]],
    method: Method,
    bank: FeatureBank,
    part: Part,
    protocol: str,
    **numbers: Any,
) -> Result:
    merged = {name: torch.cat([v[name] for v in values]).cpu() for name in values[0]}
    info, name = {"part": part.value, **method.describe()}, bank.info.get("name")
    facts: dict[str, Any] = {"method": method.name, "protocol": protocol, "info": info}
    facts |= {"bank": name if isinstance(name, str) else None, "bank_digest": bank.digest}
    return Result.of(merged, **facts, **numbers)


def _rows_of(classes: ClassSet, names: Collection[str] | None) -> Tensor:
    """The rows of the named classes, of all without names."""
    wanted = torch.tensor([names is None or name in names for name in classes.names], device=classes.device)
    rows = wanted[classes.labels].nonzero().flatten()
    if not len(rows):
        raise EpisodeError("none of the base classes whose images are to be queries has held-out images")
    return rows
