"""MetaQDA: quadratic discriminants under a prior that is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean
from wdae.nn.space import whitening
from wdae.runtime.device import full_precision


class MetaQda(LearnedMethod):
    """A Gaussian for each class, its mean and covariance the likeliest under a learned prior.

    Xueting Zhang, Debin Meng, Henry Gouk, Timothy Hospedales, "Shallow Bayesian Meta Learning for Real-World
    Few-Shot Recognition", ICCV 2021, https://arxiv.org/abs/2101.02833 (MAP version). The prior is
    normal-inverse-Wishart: mean m, its weight κ, degrees of freedom ν, scatter ``S = L Lᵀ``, all learned.
    From K shots ``μ = (κ m + Σ x) / (κ + K)`` and ``Σ = (S + Σ (x − x̄)(x − x̄)ᵀ + κK/(κ + K) (x̄ − m)(x̄ −
    m)ᵀ) / (ν + K + D + 2)``. As in the authors' code, the score is minus the Mahalanobis distance, without
    the determinant, and its precision is mixed with the identity.

    Departures: L starts at the shrunk covariance within base classes and m at the mean of all base features,
    not at the identity and zero; a learned scale multiplies the distances, as features have unit length.

    Args:
        mix: share of the identity in the precision.
        shrink: of the covariance that L starts at, as in `lda`.
    """

    name = "meta-qda"
    about = "a Gaussian for each class under a learned prior"
    paper = "Zhang 2021"
    joint: ClassVar[bool] = False
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-4}

    def __init__(self, setting: Setting, mix: float = 0.5, shrink: float = 0.95) -> None:
        super().__init__(setting)
        self.mix, self.shrink = mix, shrink
        self.mean = nn.Parameter(torch.zeros(setting.dim))
        self.log_weight = nn.Parameter(torch.tensor(0.1).log())  # κ
        self.freedom = nn.Parameter(torch.tensor(float(setting.dim)))  # ν
        self.root = nn.Parameter(torch.eye(setting.dim) * (2 * setting.dim + 2) ** 0.5)  # L

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """L at the shrunk covariance within base classes, m at the mean of their features."""
        white = whitening(pool.features, pool.labels, (self.shrink,))[self.shrink].double()
        covariance = torch.linalg.inv(white @ white) * (2 * self.dim + 2)
        self.root.data.copy_(torch.linalg.cholesky((covariance + covariance.T) / 2))
        self.mean.data.copy_(unit(pool.features.float()).mean(0))

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """The likeliest Gaussians; their covariances are S and a few rows more, and are never written out."""
        with full_precision(support.features):
            shots = unit(support.features.float())  # [E, n, K, D]
            count = support.shots.float().unsqueeze(-1)  # [E, n, 1]
            weight = self.log_weight.exp()
            mean = masked_mean(shots, support.mask)
            centre = (weight * self.mean + count * mean) / (weight + count)
            apart = shots - mean.unsqueeze(2)
            if support.mask is not None:
                apart = apart * support.mask.unsqueeze(-1)
            pull = (weight * count / (weight + count)).sqrt() * (mean - self.mean)
            rows = self._whiten(torch.cat([apart, pull.unsqueeze(2)], dim=2))  # [E, n, K + 1, D]
            inner = rows @ rows.transpose(-1, -2) + torch.eye(rows.shape[2], device=rows.device)
            factor = torch.linalg.cholesky(inner)
            rows = torch.linalg.solve_triangular(factor, rows, upper=False)
            tightness = self.freedom.clamp(min=self.dim - 1) + count.squeeze(-1) + self.dim + 2  # [E, n]
            white = self._whiten(centre)

        def scorer(queries: Tensor) -> Tensor:
            with full_precision(queries):
                queries = unit(queries.float())
                plain = _squares(queries, centre)  # [E, Q, n]
                own = self._whiten(queries)
                # (S + UᵀU)⁻¹ by Woodbury: the whitened distance less what lies along the rows
                along = torch.einsum("eqd,enkd->eqnk", own, rows)
                along = along - torch.einsum("end,enkd->enk", white, rows).unsqueeze(1)
                distance = (_squares(own, white) - along.square().sum(-1)) * tightness.unsqueeze(1)
                return -0.5 * self.scale * ((1 - self.mix) * distance + self.mix * plain)

        return scorer

    def _whiten(self, rows: Tensor) -> Tensor:
        """``L⁻¹ x`` of rows ``[..., D]``; the diagonal of L counts by its absolute value."""
        lower = self.root.tril(-1) + self.root.diagonal().abs().diag()
        flat: Tensor = torch.linalg.solve_triangular(lower, rows.reshape(-1, self.dim).T, upper=False)
        return flat.T.reshape(rows.shape)


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of ``[E, Q, D]`` and ``[E, n, D]``: ``[E, Q, n]``."""
    products = a @ b.transpose(-1, -2)
    return a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2) - 2 * products
