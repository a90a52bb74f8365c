"""The class graph: each class is joined to its nearest classes by cosine similarity.

Similarities are computed in blocks of rows, so memory is O(N·J + block·N). A graph over base classes is built
once; :func:`extend_graph` adds n novel classes in O(n·N), exactly. Of MANY classes on a CPU, neighbours come
from an index (:mod:`wdae.nn.class_index`), and :func:`surroundings` adds novel classes in O(n · log N).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.nn.class_index import ClassIndex, has_index
from wdae.nn.cosine import unit
from wdae.printing import warn

DEFAULT_MEMORY_MB = 256.0
MANY = 50_000
"""Classes from which on a CPU takes an index, where one is installed; a GPU compares all with all."""
_GPU_SHARE = 0.1  # of a GPU's memory, for a block of similarities
_PROPOSED = 4  # classes near a novel one that are looked at, for each neighbour it gets


@dataclass(frozen=True)
class ClassGraph:
    """Directed edges from every class to its neighbours.

    Shapes:
        ``neighbours`` ``[..., N, J]`` (class indices, nearest first), ``similarities`` ``[..., N, J]``
        (cosines), with N classes and J neighbours. ``index``: where the neighbours come from an index.

    >>> graph = build_graph(torch.eye(4), n_neighbours=2)
    >>> graph.neighbours.shape, graph.strengths[0].tolist()
    (torch.Size([4, 2]), [0.5, 0.5])
    """

    neighbours: Tensor
    similarities: Tensor
    inverse_temperature: float = 5.0
    index: ClassIndex | None = field(default=None, compare=False, repr=False)

    @property
    def strengths(self) -> Tensor:
        """Edge strengths ``a_ij``: a softmax over the similarities of each class's neighbours."""
        return torch.softmax(self.inverse_temperature * self.similarities, dim=-1)


def _check_classes(n_classes: int) -> None:
    if n_classes < 2:
        raise ModelError(
            f"a class graph needs at least 2 classes, got {n_classes}; give base classes or more novel ones"
        )


@torch.no_grad()
def build_graph(
    weights: Tensor,
    n_neighbours: int = 10,
    inverse_temperature: float = 5.0,
    memory_mb: float | None = None,
    many: int = MANY,
) -> ClassGraph:
    """Join each class to its J nearest classes by cosine similarity, itself excluded.

    Of ``many`` classes or more on a CPU, an index finds the neighbours (recall and settings: its ``facts``).

    Args:
        weights: initial estimates ``[..., N, D]``, before any noise.
        n_neighbours: J; with fewer than J + 1 classes, all the others are neighbours.
        inverse_temperature: of the softmax over a class's neighbours.
        memory_mb: cap on the block of similarities held at once; by default 256 or, on a GPU, a tenth of its
            memory.
        many: number of classes from which an index is taken.

    >>> angles = torch.tensor([0.0, 0.1, 1.0, 1.2])  # four classes in the plane
    >>> graph = build_graph(torch.stack([angles.cos(), angles.sin()], dim=1), n_neighbours=1)
    >>> graph.neighbours.flatten().tolist()
    [1, 0, 3, 2]
    """
    *lead, N, D = weights.shape
    _check_classes(N)
    J = min(n_neighbours, N - 1)
    flat = unit(weights.float()).reshape(-1, N, D)  # [E, N, D]
    E = flat.shape[0]
    if not lead and many <= N and flat.device.type == "cpu":
        if has_index():
            return _indexed(flat[0], J, inverse_temperature)
        warn(f"{N} classes are compared with each other; an index is quicker: pip install 'wdae[index]'")
    if memory_mb is None:
        memory_mb = DEFAULT_MEMORY_MB
        if flat.device.type == "cuda":
            memory_mb = max(
                memory_mb, _GPU_SHARE * torch.cuda.get_device_properties(flat.device).total_memory / 2**20
            )
    rows = max(1, min(N, int(memory_mb * 2**20 / (flat.element_size() * N * E))))
    blocks = []
    with torch.autocast(flat.device.type, enabled=False):  # who is whose neighbour is decided in float32
        for start in range(0, N, rows):
            block = flat[:, start : start + rows] @ flat.transpose(1, 2)  # [E, rows, N]
            own = torch.arange(block.shape[1], device=block.device)
            block[:, own, start + own] = -torch.inf
            blocks.append(block.topk(J, dim=-1))
    similarities = torch.cat([b.values for b in blocks], dim=1).reshape(*lead, N, J)
    neighbours = torch.cat([b.indices for b in blocks], dim=1).reshape(*lead, N, J)
    return ClassGraph(neighbours, similarities, inverse_temperature)


def _indexed(weights: Tensor, J: int, inverse_temperature: float) -> ClassGraph:
    """The graph of unit rows ``[N, D]``, by an index of them."""
    index = ClassIndex.build(weights, J)
    return ClassGraph(*index.neighbours(J), inverse_temperature, index)


@dataclass(frozen=True)
class Surroundings:
    """The classes that results of n novel ones depend on, ring after ring, and their part of the class graph.

    Shapes: ``near`` ``[S]``: base classes, those one edge away first. Nodes are the novel classes, then
    these: ``sizes`` says how many there are within 0, 1, ... edges. ``graph`` has the lists of all but the
    last ring.
    """

    near: Tensor
    sizes: tuple[int, ...]
    graph: ClassGraph


@torch.no_grad()
def surroundings(
    graph: ClassGraph, base: Tensor, novel: Tensor, n_neighbours: int, hops: int
) -> Surroundings:
    """Add novel classes to a graph that has an index, as far as ``hops`` edges around them.

    Exact but for novel classes that the index proposes no true neighbour for.

    Args:
        graph: of the base classes, with its index.
        base: unit base weights ``[N, D]``.
        novel: unit initial estimates ``[n, D]``.
    """
    assert graph.index is not None
    N, n = len(base), len(novel)
    J = min(n_neighbours, N + n - 1)
    ids, cosines = graph.index.nearest(novel, _PROPOSED * J)
    to_novel = (novel @ novel.T).fill_diagonal_(-torch.inf)
    newcomers = N + torch.arange(n)
    lists = [_best(torch.cat([ids, newcomers.expand(n, n)], 1), torch.cat([cosines, to_novel], 1), J)]
    nodes, sizes = newcomers, [n]
    for depth in range(hops):
        found = lists[-1][0].unique()
        ring = found[~torch.isin(found, nodes)]
        nodes = torch.cat([nodes, ring])
        sizes.append(len(nodes))
        if depth < hops - 1:  # nobody asks for the neighbours of the last ring
            names = torch.cat([graph.neighbours[ring], newcomers.expand(len(ring), n)], 1)
            near = torch.cat([graph.similarities[ring], base[ring] @ novel.T], 1)
            lists.append(_best(names, near, J))
    names, near = (torch.cat([pair[i] for pair in lists]) for i in (0, 1))
    order = nodes.argsort()
    local = order[torch.searchsorted(nodes[order], names)]
    return Surroundings(nodes[n:], tuple(sizes), ClassGraph(local, near, graph.inverse_temperature))


def _best(names: Tensor, similarities: Tensor, J: int) -> tuple[Tensor, Tensor]:
    best = similarities.topk(J, dim=1)
    return names.gather(1, best.indices), best.values


@dataclass(frozen=True)
class GraphExtension:
    """The graph of base classes with n novel classes added, for each of E episodes.

    Node indices run over ``0..N-1`` (base), then ``N..N+n-1`` (this episode's novel classes).

    Shapes:
        novel: lists of the novel classes ``[E, n, J]``; changed ``[E, N]``: which base classes get a novel
        neighbour; to_base ``[E, n, N]``: similarities.
    """

    base: ClassGraph
    novel: ClassGraph
    changed: Tensor
    to_base: Tensor

    def lists(self, episode: Tensor, node: Tensor) -> ClassGraph:
        """The neighbour lists ``[P, J]`` of base classes, one for each pair of episode and class."""
        n, N = self.to_base.shape[1:]
        J = self.novel.neighbours.shape[-1]
        candidates = torch.cat([self.base.similarities[node], self.to_base[episode, :, node]], dim=-1)
        best = candidates.topk(J, dim=-1)
        newcomers = (N + torch.arange(n, device=node.device)).expand(len(node), n)
        names = torch.cat([self.base.neighbours[node], newcomers], dim=-1)
        return ClassGraph(names.gather(-1, best.indices), best.values, self.base.inverse_temperature)


@torch.no_grad()
def extend_graph(base_graph: ClassGraph, base: Tensor, novel: Tensor, n_neighbours: int) -> GraphExtension:
    """Add novel classes to the graph of the base classes, exactly, in O(n·N) for each episode.

    A base class is touched only where a novel class is nearer than its last neighbour.

    Args:
        base_graph: graph over the base classes, from :func:`build_graph`.
        base: unit base weights ``[N, D]``.
        novel: unit initial estimates ``[E, n, D]``.
        n_neighbours: J asked for; more than the base graph has when there are few base classes.
    """
    N, n = base.shape[0], novel.shape[1]
    J = min(n_neighbours, N + n - 1)
    to_base = novel @ base.T  # [E, n, N]
    to_novel = novel @ novel.transpose(1, 2)  # [E, n, n]
    to_novel.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    near = torch.cat([to_base, to_novel], dim=-1).topk(J, dim=-1)
    if base_graph.similarities.shape[-1] < J:  # lists that are not full take every newcomer
        changed = torch.ones(novel.shape[0], N, dtype=torch.bool, device=novel.device)
    else:
        changed = to_base.amax(dim=1) > base_graph.similarities[:, -1]  # [E, N]
    novel_graph = ClassGraph(near.indices, near.values, base_graph.inverse_temperature)
    return GraphExtension(base_graph, novel_graph, changed, to_base)
