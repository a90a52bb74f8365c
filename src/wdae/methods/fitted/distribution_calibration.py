"""Distribution calibration: draws around the shots, with statistics of the base classes nearest to them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Method, Scorer, Support
from wdae.methods.fitted.logistic import fit_logistic
from wdae.nn.cosine import unit


class DistributionCalibration(Method):
    """Each shot borrows mean and covariance of the base classes nearest to it; a classifier learns the draws.

    Shuo Yang, Lu Liu, Min Xu, "Free Lunch for Few-Shot Learning: Distribution Calibration", ICLR 2021,
    https://arxiv.org/abs/2101.06395 (LR + DC). Shots and queries are taken to a power (Tukey's ladder). The
    distribution of a shot has the mean of the shot and of the k nearest base means, and the mean of their
    covariances with α added to every entry; logistic regression learns from the shots and the draws.

    Departures: banks keep no lengths of features, so all have the same, ``length``; every shot uses the same
    random numbers, so that neither the order of shots nor other episodes matter.

    Args:
        power: of shots and queries; where features are negative, of their absolute value (0.5 in the paper).
        length: of the features before that (1 was best of 1, 5 and 25 on validation classes).
        n_nearest: k, base classes that a shot borrows from (2 in the paper).
        spread: α (0.21 in the paper), over the mean variance of a feature within base classes.
        draws: features drawn for a class, over its shots (750 in the paper).
        strength: C of the logistic regression.
    """

    name = "distribution-calibration"
    about = "logistic regression on draws around shots and their nearest base classes"
    paper = "Yang 2021"
    joint: ClassVar[bool] = False

    def __init__(
        self,
        power: float = 0.5,
        length: float = 1.0,
        n_nearest: int = 2,
        spread: float = 0.21,
        draws: int = 150,
        strength: float = 1.0,
    ) -> None:
        if not (0 < power <= 1 and length > 0 and n_nearest >= 1 and spread >= 0 and draws >= 1):
            raise ModelError(
                f"{self.name} takes 0 < power ≤ 1, length > 0, n_nearest and draws ≥ 1 and spread ≥ 0; got"
                f" {power}, {length}, {n_nearest}, {draws} and {spread}"
            )
        if strength <= 0:
            raise ModelError(f"the strength C of logistic regression must be above 0, got {strength}")
        self.power, self.length, self.n_nearest, self.spread = power, length, n_nearest, spread
        self.draws, self.strength = draws, strength
        self.means = self.noise = self.shared = torch.empty(0)

    def describe(self) -> dict[str, Any]:
        """Its options."""
        names = ("power", "length", "n_nearest", "spread", "draws", "strength")
        return {name: getattr(self, name) for name in names}

    def _transform(self, features: Tensor) -> Tensor:
        rows = self.length * unit(features.float())
        return rows.sign() * rows.abs().pow(self.power)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Means of the base classes, and draws from their covariances."""
        noise, means = [], []
        for c in range(pool.n_classes):
            rows = self.length * unit(pool.of_class(c).float())
            means.append(rows.mean(0))
            # random sums of a class's deviations have its covariance
            z = torch.randn(self.draws, len(rows), generator=generator).to(rows)
            noise.append(z @ (rows - means[-1]) / max(1, len(rows) - 1) ** 0.5)
        self.means, self.noise = torch.stack(means), torch.stack(noise)  # [N, D], [N, draws, D]
        z = torch.randn(self.draws, 1, generator=generator).to(self.noise)
        self.shared = z * (self.spread * self.noise.square().mean()).sqrt()  # α in every entry

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Draw around every shot, and fit all episodes at once."""
        self.refuse_joint(joint)
        scorer = fit_logistic(self.draw(support), None, self.strength, equal_lengths=False)
        return lambda queries: scorer(self._transform(queries))

    def draw(self, support: Support) -> Support:
        """The transformed shots and what is drawn around them: ``[E, n, K (1 + draws / K), D]``."""
        shots = self._transform(support.features)
        E, n, K, D = shots.shape
        each = -(-self.draws // (K if support.mask is None else 1))  # draws around a shot, at most
        k = min(self.n_nearest, len(self.means))
        rows = shots.flatten(0, 2)
        nearest = torch.cdist(rows, self.means).topk(k, largest=False).indices  # [E·n·K, k]
        centre = (rows + self.means[nearest].sum(1)) / (k + 1)
        noise = sum(self.noise[nearest[:, i], :each] for i in range(k)) / k**0.5  # [E·n·K, each, D]
        drawn = centre.unsqueeze(1) + noise + self.shared[:each]
        made = torch.cat([shots.unsqueeze(3), drawn.view(E, n, K, each, D)], dim=3).flatten(2, 3)
        if support.mask is None:
            return Support(made)
        own = -(-self.draws // support.shots.clamp(min=1))  # [E, n]
        kept = torch.arange(each + 1, device=made.device) <= own[..., None, None]  # [E, n, 1, each + 1]
        return Support(made, (support.mask.unsqueeze(-1) & kept).flatten(2, 3))
