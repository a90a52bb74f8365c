"""SNAIL: causal convolutions and attention over the sequence of labelled examples."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import linear, orthogonal_linear, principal_init

State = tuple[Tensor, Tensor, Tensor]
"""Support ``[E, T, C]``, queries ``[E, Q, C]`` (each the end of the same sequence), mask ``[E, T]``.

All is causal: what stands at a position depends on earlier ones only, so the support is computed once.
"""


class DenseBlock(nn.Module):
    """A causal convolution over two positions, ``dilation`` apart, gated and appended (section 3)."""

    def __init__(self, size: int, filters: int, dilation: int, generator: Random) -> None:
        super().__init__()
        self.dilation = dilation
        self.now, self.before = (linear(size, 2 * filters, generator) for _ in range(2))

    def forward(self, state: State) -> State:
        """``[..., C]`` → ``[..., C + filters]``."""
        support, queries, mask = state
        T, d = support.shape[1], self.dilation
        past = F.pad(support, (0, 0, d, 0))  # position t holds t − d
        new = self._gate(self.now(support) + self.before(past[:, :T])) * mask.unsqueeze(-1)
        last = self._gate(self.now(queries) + self.before(past[:, T : T + 1]))
        return torch.cat([support, new], -1), torch.cat([queries, last], -1), mask

    @staticmethod
    def _gate(x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return torch.tanh(value) * torch.sigmoid(gate)


class Attention(nn.Module):
    """Causal soft attention whose reading is appended (section 3)."""

    def __init__(self, size: int, keys: int, values: int, generator: Random) -> None:
        super().__init__()
        self.query, self.key = (linear(size, keys, generator) for _ in range(2))
        self.key.load_state_dict(self.query.state_dict())  # attention begins as similarity
        self.value = linear(size, values, generator)

    def forward(self, state: State) -> State:
        """``[..., C]`` → ``[..., C + values]``."""
        support, queries, mask = state
        T = support.shape[1]
        keys, values = self.key(support), self.value(support)
        later = torch.ones(T, T, dtype=torch.bool, device=support.device).triu(1)
        # A padded position attends to itself, so that its softmax is defined.
        own = torch.eye(T, dtype=torch.bool, device=support.device)
        hidden = (later | ~mask.unsqueeze(1)) & ~own
        scores = self._scores(self.query(support), keys).masked_fill(hidden, -torch.inf)
        read = (torch.softmax(scores, -1) @ values) * mask.unsqueeze(-1)
        scores = self._scores(self.query(queries), keys).masked_fill(~mask.unsqueeze(1), -torch.inf)
        itself = self._scores(self.query(queries).unsqueeze(-2), self.key(queries).unsqueeze(-2)).squeeze(-1)
        shares = torch.softmax(torch.cat([scores, itself], -1), -1)  # a query sees the support and itself
        last = shares[..., :T] @ values + shares[..., T:] * self.value(queries)
        return torch.cat([support, read], -1), torch.cat([queries, last], -1), mask

    @staticmethod
    def _scores(queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2) / math.sqrt(keys.shape[-1])


class Snail(LearnedMethod):
    """A sequence of labelled shots, then a query, read by causal convolutions and attention in turn.

    Nikhil Mishra, Mostafa Rohaninejad, Xi Chen, Pieter Abbeel, "A Simple Neural Attentive Meta-Learner", ICLR
    2018, https://arxiv.org/abs/1707.03141. The blocks are attention, TC, attention, TC, attention. It depends
    on the order of the examples (all first shots, then all second ones, ...) and knows a fixed number of
    classes.

    Departures: frozen features through a linear map, started along the principal directions of base-train
    features, replace the convolutional embedding; sizes are a fraction of the paper's (filters 16, not 128;
    keys and values of the attention 64 and 32, 128 and 64, 128 and 64, not 64 and 32, 256 and 128, 512 and
    256), and training is a few hundred steps, so its figures are those of a small SNAIL; keys of the
    attention start equal to its queries; unequal numbers of shots are padded in front, as the causal
    convolutions pad. It starts from chance, so it trains longer than others. Principal
    directions were chosen on validation classes of an earlier embedded bank: from random ones it is behind
    after twice as many steps.

    Args:
        n_way: the largest number of novel classes.
        n_shot: the number of shots that the convolutions reach over.
        hidden, filters: sizes of the embedding and of each convolution.
    """

    name = "snail"
    about = "causal convolutions and attention over the sequence of shots"
    paper = "Mishra 2018"
    joint = False
    ordered = True
    training_length = 4
    training_defaults = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}

    def __init__(
        self, setting: Setting, n_way: int = 5, n_shot: int = 5, hidden: int = 64, filters: int = 16
    ) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the last layer's own weights set the scale
        self.n_way = n_way
        generator = setting.generator
        self.embed = orthogonal_linear(setting.dim, hidden, generator)
        depth = math.ceil(math.log2(n_way * n_shot + 1))
        size = hidden + n_way
        blocks: list[nn.Module] = []
        for keys, values, n_levels in ((64, 32, depth), (128, 64, depth), (128, 64, 0)):
            blocks.append(Attention(size, keys, values, generator))
            size += values
            for level in range(n_levels):
                blocks.append(DenseBlock(size, filters, 2**level, generator))
                size += filters
        self.blocks = nn.Sequential(*blocks)
        self.classify = linear(size, n_way, generator)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The linear map along the principal directions of the base-train features."""
        principal_init(self.embed, pool.features)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Read the support once; every query continues it."""
        _, n, K, _ = support.features.shape
        self.check_n_way(n, self.n_way)
        rows = support_examples(support)
        labels = F.pad(rows.targets, (0, self.n_way - n))
        sequence = torch.cat([self._embed(rows.features), labels], dim=-1)
        mask = rows.weight > 0
        # First all first shots, then all second ones; padding before everything.
        shot = torch.arange(K, device=mask.device).repeat(n).expand_as(mask)
        order = torch.where(mask, shot, -1).argsort(dim=1, stable=True)
        mask = mask.gather(1, order)
        sequence = sequence.gather(1, order.unsqueeze(-1).expand_as(sequence)) * mask.unsqueeze(-1)

        def scorer(queries: Tensor) -> Tensor:
            last = F.pad(self._embed(queries), (0, self.n_way))
            scores: Tensor = self.classify(self.blocks((sequence, last, mask))[1])
            return scores[..., :n]

        return scorer

    def _embed(self, features: Tensor) -> Tensor:
        """Entries of about unit size, like those of the labels beside them."""
        embedded: Tensor = self.embed(unit(features))
        return embedded * math.sqrt(embedded.shape[-1])
