"""Nearest class mean after centring by the base images: SimpleShot's CL2N, and EASY's."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Method, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean
from wdae.nn.space import means_by_class


class CentredMean(Method):
    """Features less the mean of all base images, at unit length; the nearest class mean by distance.

    Yan Wang, Wei-Lun Chao, Kilian Weinberger, Laurens van der Maaten, "SimpleShot: Revisiting
    Nearest-Neighbor Classification for Few-Shot Learning", 2019, https://arxiv.org/abs/1911.04623 (CL2N).
    Yassir Bendou, Yuqing Hu, Raphael Lafargue, Giulia Lioi, Bastien Pasdeloup, Stéphane Pateux, Vincent
    Gripon, "EASY: Ensemble Augmented-Shot Y-shaped Learning", 2022, https://arxiv.org/abs/2201.09699, brings
    features to unit length before as well. Features of a bank come at unit length, so that here the two are
    one method. It has no departure but that one. A base class, which neither has, is the mean of its
    base-train images in the same space.
    """

    name = "centred-mean"
    about = "nearest mean by distance, centred by base images (CL2N, EASY)"
    paper = "Wang (Y.) 2019, Bendou 2022"

    def __init__(self) -> None:
        self.centre = self.means = torch.empty(0)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The mean of the base-train images, and those of the classes once it is taken off."""
        self.centre = pool.features.float().mean(0)
        self.means = means_by_class(self._centred(pool.features.float()), pool.labels, pool.n_classes)

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Minus the squared distance to class means, up to the query's own length."""
        means = masked_mean(self._centred(support.features), support.mask)  # [E, n, D]
        if joint:
            means = torch.cat([self.means.expand(len(means), -1, -1), means], dim=1)
        scorer = LinearScorer(means, -0.5 * means.square().sum(-1), base.scale)
        return lambda queries: scorer(self._centred(queries))

    def _centred(self, features: Tensor) -> Tensor:
        return unit(unit(features) - self.centre)
