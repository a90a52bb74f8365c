"""Linear discriminant analysis with the covariance of the base classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Method, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean
from wdae.nn.space import means_by_class, whitening


class LinearDiscriminant(Method):
    """The class whose mean is nearest in the Mahalanobis distance of the base classes' covariance.

    R. A. Fisher, "The use of multiple measurements in taxonomic problems", 1936,
    https://doi.org/10.1111/j.1469-1809.1936.tb02137.x; shrunk towards a multiple of the identity as by
    Jerome Friedman, "Regularized Discriminant Analysis", 1989, https://doi.org/10.1080/01621459.1989.10478752.

    Departures: a few shots say nothing of a covariance, so the one within base classes stands for all
    classes. A base class is the mean of its base-train images; all classes are equally likely.

    Args:
        shrink: s of ``(1 - s) Σ + s tr(Σ) / D I``.
    """

    name = "lda"
    about = "nearest mean by the shrunk covariance within base classes"
    paper = "Fisher 1936"

    def __init__(self, shrink: float = 0.95) -> None:
        if not (isinstance(shrink, int | float) and 0 < shrink <= 1):
            raise ModelError(f"lda's shrink is above 0 and at most 1, got {shrink}")
        self.shrink = shrink
        self.inverse = self.means = torch.empty(0)

    def describe(self) -> dict[str, Any]:
        """The shrinkage."""
        return {"shrink": self.shrink}

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Means of the base classes, and the inverse of the shrunk covariance within them."""
        root = whitening(pool.features, pool.labels, (self.shrink,))[self.shrink]
        self.inverse, self.means = root @ root, means_by_class(pool.features, pool.labels, pool.n_classes)

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Discriminants of the means of the shots."""
        means = masked_mean(unit(support.features), support.mask)  # [E, n, D]
        if joint:
            means = torch.cat([self.means.expand(len(means), -1, -1), means], dim=1)
        weights: Tensor = means @ self.inverse
        scorer = LinearScorer(weights, -0.5 * (weights * means).sum(-1), base.scale)
        return lambda queries: scorer(unit(queries))
