"""Nearest classes among hundreds of thousands, by an index: HNSW of the library usearch, on a CPU.

Yu. A. Malkov, D. A. Yashunin, "Efficient and robust approximate nearest neighbor search using Hierarchical
Navigable Small World graphs", 2018, https://arxiv.org/abs/1603.09320. The index proposes classes in half
precision; their cosines are computed anew in float32, so only who is proposed is approximate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from wdae.errors import MissingExtraError
from wdae.printing import warn
from wdae.storage.files import open_regular

CONNECTIVITY, WIDTH = 16, 64
"""Neighbours of a class in the index, and candidates looked at while it is built."""
_MANY = 250_000  # of N classes more than these, WIDTH · √(N / _MANY) candidates are looked at
RECALL = 0.98
"""The share of the true nearest classes that the index finds, at least."""
_WIDEST = 2048
_SAMPLE = 1_000  # classes whose neighbours are found exactly, to measure the recall
_MARGIN = 0.003  # of that measurement
_PIVOTS = 1_000  # classes that others are sorted by
_MIXED = 4  # one class of so many is indexed before the sorted others
_PATIENCE, _GAIN = (
    6,
    0.002,
)  # looking four times as widely must raise the recall so much, or it is for nothing
_SPARE = 2.0  # classes proposed for each one that is asked for
_ROWS = 8192  # vectors that are added, or looked up, at once
_HEAD, _TAPE = 64, 40  # bytes of the two headers in the library's file
_KINDS = bytes([105, 4, 14, 15])  # inner product, bfloat16, 64-bit keys, 32-bit slots


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """An index of class weights ``[N, D]``, unit rows.

    ``facts`` say how it was made and what share of the nearest classes it finds; JSON values.
    """

    weights: Tensor
    found: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    mapped: Any = None  # the file that it lies in; the library keeps an address alone
    order: Tensor | None = None  # all classes, near ones together: what one visits, the next finds in a cache

    @classmethod
    def build(cls, weights: Tensor, n_neighbours: int = 10, seed: int = 0) -> ClassIndex:
        """Index unit rows ``[N, D]``; it looks as widely as RECALL takes, measured on some rows."""
        N = len(weights)
        built = round(WIDTH * max(1.0, N / _MANY) ** 0.5)
        index = _empty(weights.shape[1], built)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(N, generator=generator)
        order = _near_together(weights, drawn[:_PIVOTS])
        early = torch.zeros(N, dtype=torch.bool)
        early[drawn[: N // _MIXED]] = True  # sorted ones alone would make an index of islands
        for rows in torch.cat([drawn[: N // _MIXED], order[~early[order]]]).split(_ROWS):
            index.add(rows.numpy().astype(np.uint64), weights[rows].numpy(), threads=_threads())
        # Drawn anew: those that came into the index first are found more easily than others.
        sample, J = torch.randperm(N, generator=generator)[:_SAMPLE], min(n_neighbours, N - 1)
        true = torch.cat([_others(weights, some, J) for some in sample.split(64)])
        made = cls(weights, index, order=order)

        def recall_at(width: int) -> float:
            index.expansion_search = width
            near = made.nearest(weights[sample], J + 1)[0]  # itself among them
            return float((true.unsqueeze(2) == near.unsqueeze(1)).any(2).double().mean())

        recall, width = search_width(recall_at, max(WIDTH // 2, int(_SPARE * (J + 1))))
        index.expansion_search = width
        made = replace(made, facts=_facts(built, width, recall, len(sample), n_neighbours))
        if recall < RECALL:
            warn(
                f"the index finds {100 * recall:.1f} % of the nearest classes, not {100 * RECALL:.0f}: they"
                " lie apart with nothing between them; where that is too few, compare all with all on a GPU"
            )
        return made

    def neighbours(self, J: int) -> tuple[Tensor, Tensor]:
        """The J nearest other classes of each class, nearest first, and their cosines, ``[N, J]``."""
        N = len(self.weights)
        names, cosines = torch.empty(N, J, dtype=torch.int64), torch.empty(N, J)
        order = torch.arange(N) if self.order is None else self.order
        for rows in order.split(_ROWS):
            found, near = self.nearest(self.weights[rows], J + 1)
            best = near.masked_fill_(found == rows.unsqueeze(1), -torch.inf).topk(J, dim=1)
            names[rows], cosines[rows] = found.gather(1, best.indices), best.values
        return names, cosines

    def nearest(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest classes of unit vectors ``[M, D]``, nearest first, and their cosines, ``[M, k]``."""
        k = min(k, len(self.weights))
        wanted = min(len(self.weights), int(_SPARE * k))
        keys, cosines = [], []
        for some in vectors.split(_ROWS):
            rows = np.ascontiguousarray(some.numpy(), dtype=np.float32)
            matches = self.found.search(rows, wanted, threads=_threads())
            counts = matches.counts if len(rows) > 1 else np.array([len(matches.keys)])
            found = torch.from_numpy(matches.keys.reshape(len(rows), wanted).astype(np.int64))
            found = found.clamp(0, len(self.weights) - 1)  # a file's keys may be anything
            none = torch.arange(wanted) >= torch.from_numpy(counts.astype(np.int64)).unsqueeze(1)
            for part, ids, bad in zip(some.split(256), found.split(256), none.split(256), strict=True):
                exact = torch.einsum("md,mkd->mk", part, self.weights[ids]).masked_fill_(bad, -torch.inf)
                best = exact.topk(k, dim=1)
                cosines.append(best.values)
                keys.append(ids.gather(1, best.indices))
        return torch.cat(keys), torch.cat(cosines)

    def save(self, path: Path) -> None:
        """Write the index alone; the weights lie elsewhere."""
        self.found.save(os.fspath(path))

    @classmethod
    def open(cls, path: Path, weights: Tensor, facts: Mapping[str, Any]) -> ClassIndex:
        """Map a saved index of these weights; a ValueError where it is not a sound one of their size."""
        with open_regular(path, follow=False) as file:
            data = np.memmap(file, dtype=np.uint8, mode="r")
        check_index(data, *weights.shape)
        library = _library()
        plain = np.asarray(data)
        index = library.Index.restore(plain, view=True)
        index.expansion_search = min(_WIDEST, max(1, int(facts["expansion_search"])))
        return cls(weights, index, facts, plain)


def search_width(recall_at: Callable[[int], float], width: int) -> tuple[float, int]:
    """The recall of a search and its width: the smallest that has RECALL, or where wider gains little.

    >>> search_width(lambda width: 1 - 1 / width, 32)
    (0.9838709677419355, 62)
    """
    tried: list[tuple[float, int]] = []
    while not tried or width <= _WIDEST:
        recall = recall_at(width)
        tried.append((recall, width))
        if recall >= RECALL + _MARGIN:
            break
        if len(tried) > _PATIENCE and recall < tried[-1 - _PATIENCE][0] + _GAIN:
            tried = tried if recall >= RECALL else tried[:-_PATIENCE]
            break
        width = max(width + 1, width * 5 // 4)
    return tried[-1]


def check_index(data: np.ndarray[Any, np.dtype[np.uint8]], n_classes: int, dim: int) -> None:
    """A ValueError unless an index file leads nowhere outside itself: the library follows its links unasked.

    The file: vectors, two headers, the level of each class, then for each class its key, its level and its
    links on every level. A link must lead to a class that is there on that level.
    """
    start = 8 + n_classes * dim * 2
    tape = start + _HEAD + _TAPE
    if len(data) < tape + 2 * n_classes or not n_classes:
        raise ValueError("an index that is cut short")
    head = data[start : start + _HEAD]
    sizes = [*_numbers(data[:8], "<u4"), *_numbers(head[17:41], "<u8")]
    if bytes(head[:7]) != b"usearch" or int(head[7]) != 2 or bytes(head[13:17]) != _KINDS:
        raise ValueError("no index of this version of usearch")
    count, per_level, at_base, top, entry = _numbers(data[tape - _TAPE : tape], "<u8")
    if sizes != [n_classes, 2 * dim, n_classes, 0, dim] or count != n_classes:
        raise ValueError(f"an index of {sizes[2]} classes of size {sizes[4]}")
    if not 0 < per_level <= 512 or not 0 < at_base <= 1024:
        raise ValueError(f"an index of {per_level} and {at_base} links")
    levels = np.asarray(data[tape : tape + 2 * n_classes]).view("<i2").astype(np.int64)
    if levels.min() < 0 or levels.max() != top or entry >= n_classes or levels[entry] != top:
        raise ValueError("an index with levels out of place")
    base, upper = 4 + 4 * at_base, 4 + 4 * per_level
    lengths = 10 + base + levels * upper
    ends = tape + 2 * n_classes + lengths.cumsum()
    if ends[-1] != len(data):
        raise ValueError("an index that is longer or shorter than its levels say")
    starts = ends - lengths
    for level in range(int(top) + 1):
        who = np.flatnonzero(levels >= level)
        most = at_base if level == 0 else per_level
        at = starts[who] + 10 + (0 if level == 0 else base + (level - 1) * upper)
        lists = sliding_window_view(data, 4 + 4 * most)  # one at every byte; a class's are copied
        for some in np.array_split(at, max(1, len(at) // 65_536)):
            block = lists[some].view("<u4")
            lengths, links = block[:, 0], block[:, 1:]
            if lengths.max() > most:
                raise ValueError("an index whose links lead astray")
            links = links[np.arange(most) < lengths[:, None]]
            if len(links) and (links.max() >= n_classes or (level and levels[links].min() < level)):
                raise ValueError("an index whose links lead astray")
    stored = sliding_window_view(data, 2)[starts + 8].view("<i2")[:, 0]
    if not np.array_equal(stored, levels):
        raise ValueError("an index with levels out of place")


def _near_together(weights: Tensor, pivots: Tensor) -> Tensor:
    """The numbers of all rows, sorted by the nearest of some rows."""
    some = weights[pivots].T
    return torch.cat([(rows @ some).argmax(1) for rows in weights.split(_ROWS)]).argsort(stable=True)


def _others(weights: Tensor, rows: Tensor, J: int) -> Tensor:
    """The J nearest other rows of some rows, compared with all."""
    cosines = weights[rows] @ weights.T
    cosines[torch.arange(len(rows)), rows] = -torch.inf
    return cosines.topk(J, dim=1).indices


def has_index() -> bool:
    """Whether the library is installed."""
    try:
        _library()
    except MissingExtraError:
        return False
    return True


def _library() -> Any:
    try:
        import usearch.index as library
    except ImportError:
        raise MissingExtraError("usearch", "index", "an index of classes") from None
    return library


def _empty(dim: int, built: int) -> Any:
    return _library().Index(
        ndim=dim,
        metric="ip",
        dtype="bf16",
        connectivity=CONNECTIVITY,
        expansion_add=built,
        expansion_search=built,
        enable_key_lookups=False,
    )


def _facts(built: int, width: int, recall: float, sample: int, n_neighbours: int) -> dict[str, Any]:
    import usearch

    return {
        "library": f"usearch {usearch.__version__}",
        "connectivity": CONNECTIVITY,
        "expansion_add": built,
        "expansion_search": width,
        "recall": round(recall, 5),
        "neighbours": n_neighbours,
        "sample": sample,
    }


def _threads() -> int:
    return torch.get_num_threads()


def _numbers(data: np.ndarray[Any, np.dtype[np.uint8]], kind: str) -> list[int]:
    return [int(value) for value in np.ascontiguousarray(data).view(kind)]
