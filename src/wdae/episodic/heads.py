"""What compares the features of an episode, after its authors: the backbone below learns with it.

Shapes of every head: support ``[E, n, K, D]`` and queries ``[E, Q, D]`` to scores ``[E, Q, n]``. What differs
in the trainings is in ``docs/notation.md``. The methods of the same names in :mod:`wdae.methods` work on
frozen features, and say where that makes them differ.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.nn.cosine import unit
from wdae.nn.ridge import ridge


class EpisodeHead(nn.Module):
    """Scores of an episode's queries.

    ``mixed``: whether it may compute in bfloat16.

    Args:
        dim: feature size D.
        channels: of the backbone's last map.
        ways: classes of a training episode.
    """

    mixed: ClassVar[bool] = False

    def __init__(self, dim: int, channels: int, ways: int) -> None:
        super().__init__()
        self.dim, self.channels, self.ways = dim, channels, ways

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """What is minimised: cross-entropy."""
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


class PrototypicalHead(EpisodeHead):
    """Squared distance to class means: Snell et al. 2017, https://arxiv.org/abs/1703.05175, eq. 1 and 2.

    Departure: distances are divided by D and multiplied by a learned scale. As they are, those of an
    untrained Conv-4-64 differ by hundreds between classes, and the softmax sees nothing but the nearest class
    until training has shrunk the features.
    """

    def __init__(self, dim: int, channels: int, ways: int, scale: float = 10.0) -> None:
        super().__init__(dim, channels, ways)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        """``−s ‖f − p‖² / D`` but for ``‖f‖²``, which all classes share."""
        prototypes = support.mean(2)  # [E, n, D]
        centre = prototypes.mean(1, keepdim=True)  # distances do not see it; products are smaller without it
        rows = prototypes - centre
        near = 2 * (queries - centre) @ rows.transpose(1, 2) - rows.square().sum(-1).unsqueeze(1)
        return self.scale / self.dim * near


class MatchingHead(EpisodeHead):
    """Attention over labelled examples: Vinyals et al. 2016, https://arxiv.org/abs/1606.04080, eq. 1 and 2.

    Without full-context embeddings. Departure: cosines are multiplied by a learned scale.
    """

    def __init__(self, dim: int, channels: int, ways: int, scale: float = 10.0) -> None:
        super().__init__(dim, channels, ways)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        """Log-probability of each class."""
        E, n, K, _ = support.shape
        cosines = unit(queries) @ unit(support).flatten(1, 2).transpose(1, 2)  # [E, Q, nK]
        attention = torch.log_softmax(self.scale * cosines, -1)
        return attention.view(E, -1, n, K).logsumexp(-1)


class R2D2Head(EpisodeHead):
    """Ridge regression in closed form: Bertinetto et al. 2019, https://arxiv.org/abs/1805.08136, eq. 4 to 6.

    λ and α are learned; β, which no softmax sees, is left out. Departures: no column of ones beside the
    features, so that scores have no offset of their own; features are divided by √D, so that λ = 1 is of the
    size of their products.
    """

    def __init__(self, dim: int, channels: int, ways: int, penalty: float = 1.0, scale: float = 10.0) -> None:
        super().__init__(dim, channels, ways)
        self.log_penalty = nn.Parameter(torch.tensor(penalty).log())
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        """``α W x``."""
        E, n, K, D = support.shape
        targets = torch.eye(n, device=support.device).repeat_interleave(K, 0).expand(E, -1, -1)
        weights = ridge(support.flatten(1, 2) / math.sqrt(D), targets, self.log_penalty.exp())  # [E, n, D]
        return self.scale / math.sqrt(D) * queries @ weights.transpose(1, 2)


class RelationHead(EpisodeHead):
    """A convolutional network compares maps: Sung et al. 2018, https://arxiv.org/abs/1711.06025, eq. 1 and 2.

    Scores in (0, 1) are fitted to 1 for the right class and 0 for others by mean squared error; the maps of
    a class's shots are added. D is a map of ``channels`` × S × S. The first convolution, on a class beside a
    query, is computed as the sum of two, each on one of them.
    """

    mixed = True

    def __init__(self, dim: int, channels: int, ways: int, hidden: int = 8) -> None:
        super().__init__(dim, channels, ways)
        self.side = math.isqrt(dim // channels)
        last = ((self.side - 2) // 2 - 2) // 2
        self.of_class = nn.Conv2d(channels, 64, 3, bias=False)
        self.of_query = nn.Conv2d(channels, 64, 3, bias=False)
        self.first = nn.Sequential(nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU())
        self.second = nn.Sequential(
            nn.Conv2d(64, 64, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
        )
        self.decide = nn.Sequential(nn.Linear(64 * last * last, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        """Relation scores."""
        (E, n, _, _), Q = support.shape, queries.shape[1]
        shape = (self.channels, self.side, self.side)
        classes = self.of_class(support.sum(2).view(E * n, *shape))
        asked = self.of_query(queries.reshape(E * Q, *shape))
        pairs = classes.view(E, 1, n, *classes.shape[1:]) + asked.view(E, Q, 1, *asked.shape[1:])
        pairs = pairs.flatten(0, 2).contiguous(memory_format=torch.channels_last)
        scores: Tensor = self.decide(self.second(self.first(pairs)))
        return torch.sigmoid(scores.float()).view(E, Q, n)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(scores, F.one_hot(labels, scores.shape[-1]).to(scores.dtype))


class _Edges(nn.Module):
    """Edge strengths from a network on ``|x_i − x_j|``, softmax over each node's neighbours (eq. 5)."""

    def __init__(self, node: int, hidden: int) -> None:
        super().__init__()
        sizes = (node, 2 * hidden, 2 * hidden, hidden, hidden)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.LeakyReLU()]
        self.network = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, nodes: Tensor) -> Tensor:
        """``[G, N, H]`` to ``[G, N, N]``; pairs are symmetric, so half of them are computed."""
        G, N, _ = nodes.shape
        i, j = torch.triu_indices(N, N, 1, device=nodes.device)
        strength = self.network((nodes[:, i] - nodes[:, j]).abs().flatten(0, 1)).view(G, -1).float()
        whole = strength.new_full((G, N, N), -torch.inf)  # no edge to itself
        whole[:, i, j] = strength
        whole[:, j, i] = strength
        return torch.softmax(whole, -1)


class GraphHead(EpisodeHead):
    """A graph network over the shots and one query: Garcia and Bruna 2018, https://arxiv.org/abs/1711.04043.

    A node is an embedded picture beside its one-hot label, uniform for the query. Two layers each append what
    a node and its neighbours give; a third gives the query's class (section 4). The graph has the authors'
    sizes. The embedding is the backbone and one linear layer: theirs is ``conv4-256`` with LeakyReLU and
    dropout, its second convolution without padding.
    """

    mixed = True

    def __init__(
        self, dim: int, channels: int, ways: int, embedded: int = 128, hidden: int = 96, layers: int = 2
    ) -> None:
        super().__init__(dim, channels, ways)
        self.embed = nn.Sequential(nn.Linear(dim, embedded), nn.BatchNorm1d(embedded))
        half = -(-hidden // 2)
        sizes = [embedded + ways + i * half for i in range(layers + 1)]
        self.edges = nn.ModuleList(_Edges(size, hidden) for size in sizes)
        self.append = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * size, half), nn.BatchNorm1d(half), nn.LeakyReLU())
            for size in sizes[:-1]
        )
        self.classify = nn.Linear(2 * sizes[-1], ways)

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        """What the last layer says of each query's node."""
        (E, n, K, _), Q = support.shape, queries.shape[1]
        rows = self.embed(torch.cat([support.flatten(1, 2), queries], 1).flatten(0, 1)).view(E, n * K + Q, -1)
        labels = torch.eye(n, device=rows.device, dtype=rows.dtype).repeat_interleave(K, 0).expand(E, -1, -1)
        shots = torch.cat([rows[:, : n * K], labels], -1).unsqueeze(1).expand(-1, Q, -1, -1)
        query = torch.cat([rows[:, n * K :], rows.new_full((E, Q, n), 1 / n)], -1).unsqueeze(2)
        nodes = torch.cat([query, shots], 2).flatten(0, 1)  # [EQ, 1 + nK, H]
        for edges, append in zip(self.edges, self.append, strict=False):
            mixed = torch.cat([nodes, edges(nodes).to(nodes.dtype) @ nodes], -1)
            nodes = torch.cat([nodes, append(mixed.flatten(0, 1)).view(*mixed.shape[:2], -1)], -1)
        to_query = self.edges[-1](nodes)[:, :1].to(nodes.dtype)
        scores: Tensor = self.classify(torch.cat([nodes[:, 0], (to_query @ nodes).squeeze(1)], -1))
        return scores.float().view(E, Q, n)


HEADS: dict[str, type[EpisodeHead]] = {
    "matching": MatchingHead,
    "prototypical": PrototypicalHead,
    "r2d2": R2D2Head,
    "relation": RelationHead,
    "gnn": GraphHead,
}
"""Heads by the name of their method."""
