"""Are vectors of one class? Probabilistic linear discriminant analysis, for any number of examples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wdae.nn.cosine import unit
from wdae.nn.space import means_by_class, powered, whitening

FLOOR = 0.2
"""How far variances are drawn towards their mean (chosen on validation classes)."""
_SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class PLDA:
    """Vectors of a class spread around its mean with variance 1, class means with variance λ.

    Sergey Ioffe, "Probabilistic Linear Discriminant Analysis", 2006, https://doi.org/10.1007/11744085_41; on
    vectors of equal length, if asked for, as in Garcia-Romero and Espy-Wilson, 2011. With many examples a
    class, ratios are relative Mahalanobis distances (Ren et al., 2021, https://arxiv.org/abs/2106.09022);
    with few they account for what is not known of its mean.

    Shapes: centre ``[D]``, projection ``[D, R]``, widths ``[R]``: deviations within classes before they were
    made 1; between (λ) ``[R]``.
    """

    centre: Tensor
    projection: Tensor
    widths: Tensor
    between: Tensor
    power: float
    equal_length: bool

    @classmethod
    def fit(
        cls, features: Tensor, labels: Tensor, power: float, shrink: float, equal_length: bool
    ) -> PLDA | None:
        """From features ``[M, D]`` and labels ``[M]``; None where no class has two, or there are not two.

        Args:
            power: of the features (:func:`wdae.nn.space.powered`).
            shrink: of the covariance within classes (:func:`wdae.nn.space.whitening`).
            equal_length: bring vectors to equal length.
        """
        labels, counts = labels.unique(return_inverse=True, return_counts=True)[1:]
        freedom = len(labels) - len(counts)
        if len(counts) < 2 or not freedom:
            return None
        rows = powered(features, power)
        white = whitening(rows, labels, (shrink,))[shrink]
        means = means_by_class(rows, labels, len(counts))
        centre = means.mean(0)
        apart = ((means - centre) @ white).double()
        # The first axes part classes best. All D are wanted, but never as many on the classes' side.
        axes = torch.linalg.svd(apart, full_matrices=len(apart) < apart.shape[1])[2]
        projection = (white @ axes.T.to(white.dtype)).half().float()  # as a model keeps it
        ones = torch.ones(len(white))
        within = ones * ((rows - means[labels]).square().sum() / (freedom * len(ones))).clamp(min=_SMALLEST)
        made = cls(centre, projection, ones, ones, power, equal_length)
        rows = made.coordinates(features)
        means = means_by_class(rows, labels, len(counts))
        if equal_length:
            within = _floored((rows - means[labels]).square().sum(0) / freedom)
        around = means.square().mean(0) - within * (1 / counts.float()).mean()
        between = _floored(around.clamp(min=0)) / within
        return replace(made, widths=within.sqrt(), between=between)

    def coordinates(self, features: Tensor) -> Tensor:
        """Features ``[M, D]`` as vectors ``[M, R]`` of variance 1 within classes."""
        rows = (powered(features, self.power) - self.centre) @ self.projection
        if self.equal_length:
            rows = unit(rows) * math.sqrt(rows.shape[-1])
        return rows / self.widths

    def ratios(self, vectors: Tensor, means: Tensor, counts: Tensor) -> Tensor:
        """Log of how much likelier vectors ``[M, R]`` are in each class than anywhere, ``[M, C]``.

        Args:
            means: of the examples of each class ``[C, R]``.
            counts: how many there were ``[C]``.
        """
        inverse, expected = self._predictive(means, counts.unsqueeze(1))
        scaled = expected * inverse
        constant = 0.5 * (inverse.log() - expected * scaled).sum(1)
        classes = vectors @ scaled.T - 0.5 * (vectors.square() @ inverse.T) + constant
        return classes + self._anywhere(vectors).unsqueeze(1)

    def own_ratios(self, vectors: Tensor, means: Tensor, count: int) -> Tensor:
        """The same of vectors ``[..., R]``, each in the class of as many examples that is beside it."""
        inverse, expected = self._predictive(means, count)
        fits = 0.5 * (inverse.log() - (vectors - expected).square() * inverse).sum(-1)
        return fits + self._anywhere(vectors)

    def _predictive(self, means: Tensor, counts: Tensor | int) -> tuple[Tensor, Tensor]:
        """The inverse variance of another example of a class, and where it is expected."""
        held = counts * self.between  # what the examples say against what was known before
        return 1 / (1 + self.between / (held + 1)), means * (held / (held + 1))

    def _anywhere(self, vectors: Tensor) -> Tensor:
        total = 1 + self.between
        return 0.5 * (vectors.square() / total + total.log()).sum(-1)


def _floored(variances: Tensor) -> Tensor:
    return ((1 - FLOOR) * variances + FLOOR * variances.mean()).clamp(min=_SMALLEST)
