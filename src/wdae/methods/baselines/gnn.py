"""A graph network whose nodes are examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import linear, mlp, orthogonal_linear, principal_init


class Adjacency(nn.Module):
    """Unnormalised log edge strengths ``mlp(|h_i − h_j|) − τ ‖h_i − h_j‖²``; the network starts at zero."""

    def __init__(self, dim: int, hidden: int, strength: float, generator: Random) -> None:
        super().__init__()
        self.network = mlp([dim, hidden, 1], generator, zero_last=True)
        self.strength = nn.Parameter(torch.tensor(strength))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Broadcasting: ``[..., D]`` and ``[..., D]`` → ``[...]``."""
        difference = (a - b).abs()
        logits: Tensor = self.network(difference).squeeze(-1).float()
        return logits - self.strength * difference.float().square().sum(-1)


class _ShotGraph(LearnedMethod):
    """What both networks below share: a complete graph of the shots and one query, one hidden layer."""

    embed: nn.Linear
    append: nn.Linear
    first: Adjacency

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The linear map along the principal directions of the base-train features."""
        principal_init(self.embed, pool.features)

    def _among(self, nodes: Tensor, real: Tensor) -> Tensor:
        """Log edge strengths among the shots ``[E, M, M]``: no edge to itself, none to padding."""
        among: Tensor = self.first(nodes.unsqueeze(2), nodes.unsqueeze(1))
        off = torch.eye(among.shape[-1], dtype=torch.bool, device=among.device) | ~real.unsqueeze(1)
        return among.masked_fill(off, -torch.inf)

    def _with_query(self, nodes: Tensor, among: Tensor, query: Tensor, to_query: Tensor) -> Tensor:
        """The shots' nodes after the hidden layer ``[E, Q, M, H + A]``: each receives from all others and Q.

        Shapes: nodes ``[E, M, H]``, among ``[E, M, M]``, query ``[E, Q, H]``, to_query ``[E, Q, M]``.
        """
        M = among.shape[-1]
        pairs = among.unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        edges = torch.softmax(torch.cat([pairs, to_query.unsqueeze(-1)], dim=-1), dim=-1)  # [E, Q, M, M + 1]
        mixed = edges[..., :M] @ nodes.unsqueeze(1).to(edges.dtype) + edges[..., M:] * query.unsqueeze(2)
        return self._append(nodes.unsqueeze(1).expand_as(mixed), mixed)

    def _append(self, nodes: Tensor, mixed: Tensor) -> Tensor:
        added = F.leaky_relu(self.append(torch.cat([nodes, mixed.to(nodes.dtype)], dim=-1)))
        return torch.cat([nodes, 0.1 * added], dim=-1)  # small at first: edges begin as plain distances


class ExampleGraph(_ShotGraph):
    """A graph network over the shots and one query, whose nodes hold no labels.

    After Victor Garcia, Joan Bruna, "Few-Shot Learning with Graph Neural Networks", ICLR 2018,
    https://arxiv.org/abs/1711.04043 (eq. 4 to 6), but not that system, which is :class:`GraphNetwork`: labels
    are not part of the node vectors but are read in the last layer through the query's edges, so any number
    of classes works and their order does not matter. The graph is complete. A layer computes edge strengths
    from the nodes (softmax over each node's neighbours), mixes neighbours with them, and appends the result.

    Departures beside that: those of :class:`GraphNetwork`. The linear map was chosen on validation classes of
    an earlier embedded bank over random directions.

    Args:
        hidden: node size after the linear map.
        added: what the hidden layer appends.
    """

    name = "example-graph"
    about = "a graph network over shots and one query, labels read through its edges"
    paper = "after Garcia & Bruna 2018"
    joint = False
    training_defaults = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}

    def __init__(self, setting: Setting, hidden: int = 128, added: int = 32) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the adjacencies have strengths of their own
        size, generator = min(hidden, setting.dim), setting.generator
        self.embed = orthogonal_linear(setting.dim, size, generator)
        self.first = Adjacency(size, 32, setting.scale / 2, generator)
        self.append = linear(2 * size, added, generator)
        self.last = Adjacency(size + added, 32, setting.scale / 2, generator)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Log-probability of each class: the strength of the query's edges to its shots."""
        examples = support_examples(support)
        real = examples.weight > 0  # [E, M]
        nodes = self.embed(unit(examples.features))  # [E, M, H]
        among = self._among(nodes, real)

        def scorer(queries: Tensor) -> Tensor:
            query = self.embed(unit(queries))  # [E, Q, H]
            to_query = self.first(query.unsqueeze(2), nodes.unsqueeze(1))  # [E, Q, M]
            shots = self._with_query(nodes, among, query, to_query)
            to_shots = torch.softmax(to_query.masked_fill(~real.unsqueeze(1), -torch.inf), -1)
            query = self._append(query, to_shots @ nodes.to(to_shots.dtype))  # [E, Q, H + A]
            return examples.read(self.last(query.unsqueeze(2), shots))

        return scorer


class GraphNetwork(_ShotGraph):
    """A graph network over the shots and one query, with the labels in the nodes.

    Victor Garcia, Joan Bruna, "Few-Shot Learning with Graph Neural Networks", ICLR 2018,
    https://arxiv.org/abs/1711.04043 (section 4). A node is a feature beside its one-hot label, uniform for
    the query. The graph is complete. A layer computes edge strengths from the nodes by a network on |x_i −
    x_j| (softmax over each node's neighbours), convolves with them, and appends the result; the last one
    gives the query's class. The order of the classes can matter, and their number is fixed.

    Departures: a linear map to a smaller size, along the principal directions of base-train features,
    replaces the convolutional embedding, and features are frozen; one hidden layer and the last one (the
    paper: two or three in all), without batch normalisation; edge strengths start from plain distances, and
    the last layer at reading the labels that the query's edges bring.

    Args:
        n_way: the largest number of novel classes.
        hidden: size of a feature in a node.
        added: what the hidden layer appends.
    """

    name = "gnn"
    about = "a graph network over shots and one query, labels in its nodes"
    paper = "Garcia & Bruna 2018"
    joint = False
    ordered = True
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}

    def __init__(self, setting: Setting, n_way: int = 5, hidden: int = 128, added: int = 32) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the last layer's own weights set the scale
        self.n_way = n_way
        size, generator = min(hidden, setting.dim), setting.generator
        node = size + n_way
        self.embed = orthogonal_linear(setting.dim, size, generator)
        self.first = Adjacency(node, 32, setting.scale / 2, generator)
        self.append = linear(2 * node, added, generator)
        self.last = Adjacency(node + added, 32, setting.scale / 2, generator)
        self.classify = linear(2 * (node + added), n_way, generator)
        with torch.no_grad():
            self.classify.weight.mul_(0.01)
            labels = slice(node + added + size, node + added + node)  # of what the edges bring
            self.classify.weight[:, labels] += setting.scale * torch.eye(n_way)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """What the last layer says of the query's node."""
        n = support.features.shape[1]
        self.check_n_way(n, self.n_way)
        examples = support_examples(support)
        real = examples.weight > 0  # [E, M]
        labels = F.pad(examples.targets, (0, self.n_way - n))
        nodes = torch.cat([self.embed(unit(examples.features)), labels], dim=-1)  # [E, M, H]
        among = self._among(nodes, real)

        def scorer(queries: Tensor) -> Tensor:
            embedded = self.embed(unit(queries))
            unknown = embedded.new_full((*embedded.shape[:-1], self.n_way), 1 / self.n_way)
            query = torch.cat([embedded, unknown], dim=-1)  # [E, Q, H]
            to_query = self.first(query.unsqueeze(2), nodes.unsqueeze(1))  # [E, Q, M]
            shots = self._with_query(nodes, among, query, to_query)
            query = self._append(query, self._mix(to_query, real, nodes.unsqueeze(1)))  # [E, Q, H + A]
            strength = self.last(query.unsqueeze(2), shots)  # [E, Q, M]
            read = self._mix(strength, real, shots)
            scores: Tensor = self.classify(torch.cat([query, read.to(query.dtype)], dim=-1))
            return scores[..., :n]

        return scorer

    @staticmethod
    def _mix(strength: Tensor, real: Tensor, nodes: Tensor) -> Tensor:
        """Neighbours ``[E, Q or 1, M, H]`` of the query, by edge strengths ``[E, Q, M]``: ``[E, Q, H]``."""
        shares = torch.softmax(strength.masked_fill(~real.unsqueeze(1), -torch.inf), -1)
        return (shares.unsqueeze(-2) @ nodes.to(shares.dtype)).squeeze(-2)
