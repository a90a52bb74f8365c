"""Episodes: the classes, support images and query images of a batch, as index tensors.

A whole batch is drawn at once, on the device of the features. Episode i of a seed is the same in any batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.errors import EpisodeError, listed
from wdae.runtime.randomness import integers, uniform

# Streams of random numbers; one purpose each, so that changing one choice leaves the others alone.
_CLASSES, _SHOTS, _IMAGES, _QUERY_CLASSES, _QUERY_IMAGES = range(5)
# Above so many images of one class, sorting random keys beats drawing one image after another.
_SORT_ABOVE = 64
_DRAWN_AHEAD = 1024  # episodes of training whose indices are drawn at once


@dataclass(frozen=True)
class EpisodeSpec:
    """The shape of an episode.

    Args:
        n_novel: novel classes in an episode.
        n_shot: support images of a novel class; several numbers mean one of them at random.
        n_query: query images of each novel class.
        n_base_query: query images of base classes in all (class and image drawn uniformly).
        unequal: with several numbers of shots, each class of an episode gets its own.

    >>> spec = EpisodeSpec(n_novel=5, n_shot=(1, 5), n_query=15, unequal=True)
    >>> spec.n_novel, max(spec.n_shot)
    (5, 5)
    """

    n_novel: int = 5
    n_shot: tuple[int, ...] = (1,)
    n_query: int = 15
    n_base_query: int = 0
    unequal: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.n_shot, int):
            object.__setattr__(self, "n_shot", (self.n_shot,))
        for name, low in (("n_novel", 1), ("n_query", 0), ("n_base_query", 0)):
            if getattr(self, name) < low:
                raise EpisodeError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if not self.n_shot or min(self.n_shot) < 1:
            raise EpisodeError(
                f"n_shot must be at least 1, got {self.n_shot}; a class is learned from 1+ images"
            )

    @property
    def max_shot(self) -> int:
        """The largest number of shots: the width of the support tensor."""
        return max(self.n_shot)


@dataclass(frozen=True)
class Episodes:
    """A batch of E episodes, as indices into the rows of class sets.

    Shapes:
        novel_classes ``[E, n]``: indices into the classes novel ones are drawn from.
        support ``[E, n, K]``, support_mask ``[E, n, K]`` (False past a class's own shots).
        query ``[E, n, Q]``.
        base_query, base_query_label ``[E, Qb]``: rows of the base set; position among ``base_classes``.
        base_classes ``[E, N]``: the classes that play base, where they differ between episodes (training).

    >>> from wdae import EpisodeSampler, Part, synthetic_bank
    >>> pool = synthetic_bank(4, 5, 6, 20, 8, seed=0, held_out_per_class=4).select(Part.NOVEL)
    >>> episodes = EpisodeSampler(pool, EpisodeSpec(n_novel=3, n_query=2), seed=0).draw(0, 10)
    >>> episodes.support.shape, episodes.query.shape, len(episodes[:4].support)
    (torch.Size([10, 3, 1]), torch.Size([10, 3, 2]), 4)
    """

    novel_classes: Tensor
    support: Tensor
    support_mask: Tensor
    query: Tensor
    base_query: Tensor
    base_query_label: Tensor
    base_classes: Tensor | None = None

    def __len__(self) -> int:
        return self.novel_classes.shape[0]

    def __getitem__(self, rows: slice) -> Episodes:
        return replace(self, **{k: value[rows] for k, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class EpisodeSampler:
    """Draws episodes ``start..start+count-1`` of a seed.

    For evaluation give ``novel`` (and ``base_query`` where base queries are wanted). For training give the
    base classes as ``novel`` with ``fake=True``: some play novel, the others stay base, and base queries
    come from these.

    >>> from wdae import synthetic_bank, Part
    >>> bank = synthetic_bank(n_base=20, n_validation=5, n_novel=8, images_per_class=30, dim=16, seed=0)
    >>> sampler = EpisodeSampler(bank.select(Part.NOVEL), EpisodeSpec(n_novel=5, n_shot=(1,)), seed=0)
    >>> sampler.draw(0, 100).query.shape
    torch.Size([100, 5, 15])
    """

    novel: ClassSet
    spec: EpisodeSpec
    seed: int
    base_query: ClassSet | None = None
    fake: bool = False
    _filled: Tensor = field(init=False, repr=False)  # base classes that have images to draw queries from

    def __post_init__(self) -> None:
        spec, pool = self.spec, self.novel
        n_classes = len(pool.names)
        if spec.n_novel > n_classes - (2 if self.fake else 0):
            kind = "base classes to play novel (at least 2 must stay base)" if self.fake else "classes"
            raise EpisodeError(
                f"{spec.n_novel} novel classes an episode, but there are only {n_classes} {kind}"
            )
        need = spec.max_shot + spec.n_query
        few = [i for i, count in enumerate(pool.counts.tolist()) if count < need]
        if few:
            first = listed(f"{pool.names[i]!r} has {int(pool.counts[i])}" for i in few)
            raise EpisodeError(
                f"an episode takes {spec.max_shot} shots + {spec.n_query} queries = {need} images of a "
                f"class; {first}; lower n_shot or n_query, or leave the class out"
            )
        counts = pool.counts if self.fake or self.base_query is None else self.base_query.counts
        if spec.n_base_query and not self.fake and self.base_query is None:
            raise EpisodeError("base queries are asked for, but no base images were given to draw them from")
        filled = counts.nonzero().flatten()
        if spec.n_base_query and not len(filled):
            raise EpisodeError("base queries are asked for, but no base class has held-out images")
        object.__setattr__(self, "_filled", filled)

    def draw(self, start: int, count: int) -> Episodes:
        """Episodes ``start`` to ``start + count - 1``."""
        spec, pool, seed = self.spec, self.novel, self.seed
        device = pool.counts.device
        keys = uniform(seed, _CLASSES, start, (count, len(pool.names)), device)
        order = keys.argsort(dim=1) if self.fake else keys.topk(spec.n_novel, dim=1, largest=False).indices
        novel_classes = order[:, : spec.n_novel]  # [E, n]

        shots = torch.as_tensor(spec.n_shot, device=device)
        width = spec.n_novel if spec.unequal else 1
        choice = integers(seed, _SHOTS, start, torch.full((count, width), len(spec.n_shot), device=device))
        own = shots[choice].expand(count, spec.n_novel)
        mask = torch.arange(spec.max_shot, device=device) < own.unsqueeze(-1)  # [E, n, K]

        n_images = spec.max_shot + spec.n_query
        images = _distinct(seed, start, pool.counts[novel_classes], n_images, pool.counts)
        rows = images + pool.starts[novel_classes].unsqueeze(-1)  # [E, n, K + Q]
        base_query, base_label = self._draw_base(start, count, order)
        return Episodes(
            novel_classes,
            rows[..., : spec.max_shot],
            mask,
            rows[..., spec.max_shot :],
            base_query,
            base_label,
            order[:, spec.n_novel :] if self.fake else None,
        )

    def batches(self, n_episodes: int) -> Iterator[Episodes]:
        """Episodes ``0..n_episodes-1``, as many at once as suit the device."""
        size = chunk_for(self.novel.device)
        for start in range(0, n_episodes, size):
            yield self.draw(start, min(size, n_episodes - start))

    def steps(self, first: int, size: int) -> Iterator[Episodes]:
        """Endless steps of training from step ``first`` on, ``size`` episodes each.

        Indices are drawn for many steps at once, which costs less than step by step.
        """
        ahead = max(1, _DRAWN_AHEAD // size)
        for start in itertools.count(first, ahead):
            drawn = self.draw(start * size, ahead * size)
            for i in range(ahead):
                yield drawn[i * size : (i + 1) * size]

    def _draw_base(self, start: int, count: int, order: Tensor) -> tuple[Tensor, Tensor]:
        spec, device = self.spec, order.device
        if not spec.n_base_query:
            empty = torch.zeros(count, 0, dtype=torch.int64, device=device)
            return empty, empty
        if self.fake:
            pool, n_stay = self.novel, order.shape[1] - spec.n_novel
            bounds = torch.full((count, spec.n_base_query), n_stay, device=device)
            label = integers(self.seed, _QUERY_CLASSES, start, bounds)
            classes = order[:, spec.n_novel :].gather(1, label)
        else:
            assert self.base_query is not None
            pool = self.base_query
            bounds = torch.full((count, spec.n_base_query), len(self._filled), device=device)
            classes = label = self._filled[integers(self.seed, _QUERY_CLASSES, start, bounds)]
        image = integers(self.seed, _QUERY_IMAGES, start, pool.counts[classes])
        return pool.starts[classes] + image, label


def _distinct(seed: int, start: int, counts: Tensor, n: int, all_counts: Tensor) -> Tensor:
    """An ordered draw of n distinct integers below each count: ``[E, c]`` → ``[E, c, n]``.

    The t-th draw is a rank among the numbers not chosen yet, which skips those chosen.
    """
    if n > _SORT_ABOVE:
        # Of all classes, not of this batch: the numbers an episode takes must not depend on its neighbours.
        largest = int(all_counts.max())
        keys = uniform(seed, _IMAGES, start, (*counts.shape, largest), counts.device)
        keys.masked_fill_(torch.arange(largest, device=counts.device) >= counts.unsqueeze(-1), 2.0)
        return keys.topk(n, dim=-1, largest=False, sorted=True).indices
    steps = torch.arange(n, device=counts.device)
    ranks = integers(seed, _IMAGES, start, counts.unsqueeze(-1) - steps)  # [E, c, n]
    chosen = ranks[..., :1]
    ordered = chosen  # the same, ascending
    for t in range(1, n):
        rank = ranks[..., t : t + 1]
        image = rank + (ordered - steps[:t] <= rank).sum(-1, keepdim=True)
        chosen = torch.cat([chosen, image], dim=-1)
        ordered = torch.cat([ordered, image], dim=-1).sort(dim=-1).values
    return chosen


# Episodes worked on at once: few on a CPU, so that they stay in its cache; many on a GPU, to fill it.
CHUNK = {"cpu": 64}
CHUNK_ELSEWHERE = 2048


def chunk_for(device: torch.device) -> int:
    """How many episodes to work on at once."""
    return CHUNK.get(device.type, CHUNK_ELSEWHERE)


def take_rows(features: Tensor, index: Tensor) -> Tensor:
    """Rows of ``[M, D]`` by an index of any shape: ``[...]`` → ``[..., D]``."""
    return features.index_select(0, index.reshape(-1)).view(*index.shape, -1)
