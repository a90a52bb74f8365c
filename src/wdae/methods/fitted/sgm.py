"""SGM: logistic regression on features whose classifier would hardly move if it were learned again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.fitted.logistic import LogisticRegressionH, fit_logistic
from wdae.methods.learned import LearnedMethod, Random, Setting, StepLosses, TrainingBatch
from wdae.nn.cosine import unit
from wdae.nn.linear import identity_linear


def squared_gradient(features: Tensor, scores: Tensor, labels: Tensor, batch: bool = False) -> Tensor:
    """Squared length of the gradient of the cross-entropy by the rows of a linear classifier.

    For one image it is ``Σ_k (p_k − δ_ky)² ‖φ(x)‖²``; the mean over images, or, with ``batch``, that of the
    mean gradient of all images.

    Shapes: features ``[B, D]``, scores ``[B, C]``, labels ``[B]``.
    """
    error = torch.softmax(scores, -1) - F.one_hot(labels, scores.shape[-1])
    if batch:
        return (error.T @ features / len(features)).square().sum()
    return (error.square().sum(-1) * features.square().sum(-1)).mean()


class Representation(nn.Module):
    """A linear map of features, learned with a classifier of the base classes and the SGM loss."""

    def __init__(self, setting: Setting, penalty: float, batch: bool) -> None:
        super().__init__()
        self.penalty, self.batch = penalty, batch
        self.embed = identity_linear(setting.dim)
        self.classify = nn.Linear(setting.dim, setting.n_base)
        nn.init.zeros_(self.classify.bias)

    def start(self, base: BaseClasses) -> None:
        """The classifier at the learned base weights."""
        self.classify.weight.data.copy_(base.scale * unit(base.weights))

    def losses(self, batch: TrainingBatch) -> StepLosses:
        """All queries of a batch classified among all base classes, and the squared gradient magnitude."""
        assert batch.base_classes is not None and batch.novel_classes is not None
        classes = torch.cat([batch.base_classes, batch.novel_classes], dim=1)  # [E, N]
        labels = classes.gather(1, batch.labels).flatten()
        features = self.embed(batch.queries).flatten(0, 1).float()
        scores = F.linear(features, self.classify.weight.float(), self.classify.bias.float())
        penalty = self.penalty * squared_gradient(features, scores, labels, self.batch)
        return StepLosses.of(scores.unsqueeze(0), labels.unsqueeze(0), penalty)


class Sgm(LearnedMethod):
    """Logistic regression on features that were learned with a penalty on the classifier's gradients.

    Bharath Hariharan, Ross Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
    ICCV 2017, https://arxiv.org/abs/1606.02819 (section 4). If gradients at the classifier of many images are
    small for each of them, one that is learned from few images is near it. For a linear classifier the
    squared gradient magnitude is ``Σ_k (p_k − δ_ky)² ‖φ(x)‖²``.

    Departures: φ is a linear map on frozen features of unit length, started at the identity, in place of a
    network; the classifier of base classes starts at the learned base weights; those of
    :class:`~wdae.methods.fitted.logistic.LogisticRegression`.

    Args:
        penalty: λ of the SGM loss.
        strength: C of the logistic regression.
    """

    name = "sgm"
    about = "logistic regression on features learned with small classifier gradients"
    paper = "Hariharan & Girshick 2017"
    training_defaults: ClassVar[Mapping[str, Any]] = {"n_fake": 5, "queries_per_novel": 5}
    batch = False

    def __init__(self, setting: Setting, penalty: float = 0.02, strength: float = 1.0) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the classifier of base classes has its own
        self.strength = strength
        self.representation = Representation(setting, penalty, self.batch)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The classifier of base classes at their weights."""
        self.representation.start(base)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Logistic regression on the mapped shots."""
        known = base.weights if joint else None
        return fit_mapped(self.representation.embed, support, known, self.strength)

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """Classification of base images with the SGM loss."""
        return self.representation.losses(batch)


class BatchSgm(Sgm):
    """SGM with the gradient of a batch as a whole, in place of each image's.

    Hariharan and Girshick, ICCV 2017, https://arxiv.org/abs/1606.02819 (section 4); departures as in
    :class:`Sgm`. A batch is the queries of a training step.
    """

    name = "batch-sgm"
    about = "the same with the gradient of a whole batch"
    batch = True


class SgmH(LogisticRegressionH):
    """SGM's features, with hallucinated examples beside the shots.

    Hariharan and Girshick, ICCV 2017, https://arxiv.org/abs/1606.02819; departures as in :class:`Sgm` and
    :class:`~wdae.methods.fitted.logistic.LogisticRegressionH`: examples are made up before features are
    mapped.

    Args:
        penalty: λ of the SGM loss.
        options: those of `logistic-regression-h`.
    """

    name = "sgm-h"
    about = "SGM with examples made up by analogy"
    training_defaults: ClassVar[Mapping[str, Any]] = Sgm.training_defaults

    def __init__(self, setting: Setting, penalty: float = 0.02, **options: Any) -> None:
        super().__init__(setting, **options)
        self.representation = Representation(setting, penalty, batch=False)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Centroids and pairs, and the classifier of base classes at their weights."""
        super().prepare(base, pool, generator)
        self.representation.start(base)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Logistic regression on mapped shots and what is made of them."""
        known = base.weights if joint else None
        return fit_mapped(self.representation.embed, self.grow(support), known, self.strength)

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """The loss of the generator, and that of the features."""
        analogies, features = super().forward(batch, generator), self.representation.losses(batch)
        return StepLosses(
            analogies.total + features.total,
            analogies.reconstruction + features.reconstruction,
            features.classification,
            features.accuracy,
        )


def fit_mapped(embed: nn.Linear, support: Support, base: Tensor | None, strength: float) -> Scorer:
    """Logistic regression on features mapped linearly, whose lengths count."""
    shots = Support(embed(unit(support.features)), support.mask)
    known = None if base is None else embed(unit(base))
    scorer = fit_logistic(shots, known, strength, equal_lengths=False)
    return lambda queries: scorer(embed(unit(queries)))
