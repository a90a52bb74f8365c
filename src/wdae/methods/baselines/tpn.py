"""TPN: transductive propagation network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import identity_linear, mlp
from wdae.runtime.device import full_precision


def propagate(similarity: Tensor, labels: Tensor, spread: float) -> Tensor:
    """``F* = (I − α S)⁻¹ Y`` with ``S = D^-½ W D^-½`` (eq. 3 and 5 of the paper).

    Shapes: W ``[E, M, M]`` symmetric, no self-edges; Y ``[E, M, C]`` → ``[E, M, C]``.
    """
    with full_precision(similarity):
        W, Y = similarity.float(), labels.float()
        root = W.sum(-1).clamp(min=1e-12).rsqrt()
        S = root.unsqueeze(-1) * W * root.unsqueeze(-2)
        system = torch.eye(W.shape[-1], device=W.device) - spread * S  # positive definite for α < 1
        return torch.cholesky_solve(Y, torch.linalg.cholesky(system))


class Propagation(LearnedMethod):
    """Labels propagated in closed form over a graph of the shots and all queries of an episode.

    Yanbin Liu, Juho Lee, Minseop Park, Saehoon Kim, Eunho Yang, Sung Ju Hwang, Yi Yang, "Learning to
    Propagate Labels: Transductive Propagation Network for Few-shot Learning", ICLR 2019,
    https://arxiv.org/abs/1805.10002 (section 3.2). Edges are ``W_ij = exp(−½ ‖z_i/σ_i − z_j/σ_j‖²)`` with a
    learned σ for each example, to the k nearest. Queries inform each other: transductive.

    Departures: a linear map on frozen features, started at the identity, replaces the convolutions; 1/σ²
    starts at 8 for all; scores are log F*, rows summing to one, which ranks as F* does; α is 0.5, as with
    0.99 and frozen features the classes whose shots have many neighbours take all queries.

    Args:
        n_neighbours: k (20 in the paper).
        spread: α (0.99 in the paper).
    """

    name = "tpn"
    about = "labels propagated over a graph of shots and queries"
    paper = "Liu 2019"
    joint = False
    transductive = True
    training_defaults = FEW_WAY | {"queries_per_novel": 15}

    def __init__(
        self, setting: Setting, n_neighbours: int = 20, spread: float = 0.5, hidden: int = 32
    ) -> None:
        super().__init__(replace(setting, scale=8.0))  # 1/σ², not a scale of scores
        self.n_neighbours, self.spread = n_neighbours, spread
        self.embed = identity_linear(setting.dim)
        self.log_sigma = mlp([setting.dim, hidden, 1], setting.generator, zero_last=True)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Propagation from the shots to whatever queries come together."""
        examples = support_examples(support)
        M = examples.features.shape[1]

        def scorer(queries: Tensor) -> Tensor:
            nodes = torch.cat([examples.features, queries], dim=1)  # [E, M + Q, D]
            real = torch.cat([examples.weight > 0, queries.new_ones(queries.shape[:2], dtype=torch.bool)], 1)
            labels = torch.nn.functional.pad(
                examples.targets * examples.weight.unsqueeze(-1), (0, 0, 0, queries.shape[1])
            )
            spread = propagate(self.similarity(nodes, real), labels, self.spread)[:, M:]
            spread = spread.clamp(min=1e-12)
            return torch.log(spread / spread.sum(-1, keepdim=True))

        return scorer

    def similarity(self, nodes: Tensor, real: Tensor) -> Tensor:
        """``W`` ``[E, M, M]`` of nodes ``[E, M, D]``: symmetric, sparse, zero on its diagonal."""
        z = unit(self.embed(nodes))
        sigma = torch.exp(self.log_sigma(z)) * self.scale.rsqrt()  # [E, M, 1]
        with full_precision(z):
            scaled = (z / sigma).float()
            square = scaled.square().sum(-1)
            distance = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * scaled @ scaled.transpose(-1, -2)
            off = torch.eye(nodes.shape[1], dtype=torch.bool, device=z.device)
            off = off | ~(real.unsqueeze(-1) & real.unsqueeze(-2))
            W = torch.exp(-0.5 * distance.clamp(min=0)).masked_fill(off, 0.0)
            k = min(self.n_neighbours, nodes.shape[1] - 1)
            nearest = torch.zeros_like(W, dtype=torch.bool)
            nearest.scatter_(-1, W.detach().topk(k, dim=-1).indices, True)
            return W * (nearest | nearest.transpose(-1, -2))
