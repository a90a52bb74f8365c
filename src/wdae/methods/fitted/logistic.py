"""Logistic regression on the shots, and with hallucinated examples beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet
from wdae.errors import EpisodeError, ModelError
from wdae.methods.base import BaseClasses, Method, Scorer, Support
from wdae.methods.examples import LinearScorer, add_hallucinated, most_per_shot, support_examples
from wdae.methods.learned import LearnedMethod, Random, Setting, StepLosses, TrainingBatch
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import mlp
from wdae.nn.logistic import logistic_regression

_ROUNDS = 10  # of k-means


def fit_logistic(
    support: Support, base: Tensor | None, strength: float, equal_lengths: bool = True
) -> Scorer:
    """A linear classifier of novel classes and, if given, base classes ``[N, D]`` (one example each).

    ``equal_lengths``: bring all features to unit length first; else they stay as they are.
    """
    if equal_lengths:
        support, base = Support(unit(support.features), support.mask), None if base is None else unit(base)
    examples = support_examples(support, base)
    weights, bias = logistic_regression(examples.features, examples.targets, examples.weight, strength)
    scorer = LinearScorer(weights, bias)
    return (lambda queries: scorer(unit(queries))) if equal_lengths else scorer


class LogisticRegression(Method):
    """A multinomial logistic regression, fitted to the shots of each episode to its optimum.

    The baseline of the low-shot benchmark: Bharath Hariharan, Ross Girshick, "Low-shot Visual Recognition by
    Shrinking and Hallucinating Features", ICCV 2017, https://arxiv.org/abs/1606.02819.

    Departures: a base class, where asked for, is one example, its learned weight, that counts as much as the
    shots of a novel class together; the paper trains on all base-train images.

    Args:
        strength: scikit-learn's C, the inverse of the L2 penalty.
    """

    name = "logistic-regression"
    about = "a linear classifier fitted to the shots"
    paper = "Hariharan & Girshick 2017"

    def __init__(self, strength: float = 1.0) -> None:
        if strength <= 0:
            raise ModelError(f"the strength C of logistic regression must be above 0, got {strength}")
        self.strength = strength

    def describe(self) -> dict[str, Any]:
        """The strength C."""
        return {"strength": self.strength}

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Fit all episodes at once."""
        return fit_logistic(support, base.weights if joint else None, self.strength)


class LogisticRegressionH(LearnedMethod):
    """Logistic regression on the shots and on examples hallucinated by analogy.

    Bharath Hariharan, Ross Girshick, "Low-shot Visual Recognition by Shrinking and Hallucinating Features",
    ICCV 2017, https://arxiv.org/abs/1606.02819. Two centroids (a, b) of a base class show how images of one
    class differ. A generator G takes such a pair and a shot x and makes the y for which x : y is as a : b. It
    is trained on pairs of base classes: of all pairs of the second class, the one most parallel to the first.

    Departures: features are frozen (the representation is not "shrunk" first); G's network is added to
    ``x + b − a`` and starts at zero; every shot is transformed in the same ways, so the order of shots does
    not matter; the classification loss compares with the learned base weights by cosine.

    Args:
        n_centroids: clusters of each base class (100 in the paper, of classes ten times as large).
        wanted: examples a class should have; the missing ones are made up (20 in the paper).
        hidden: width of G's two hidden layers.
        strength: of the logistic regression.
        mse_weight: of the squared error beside the classification loss (10 in the paper).
    """

    name = "logistic-regression-h"
    about = "logistic regression on shots and analogies of base classes"
    paper = "Hariharan & Girshick 2017"
    training_defaults: ClassVar[Mapping[str, Any]] = {"n_fake": 5, "queries_per_novel": 1}
    centroids: Tensor
    pairs: Tensor

    def __init__(
        self,
        setting: Setting,
        n_centroids: int = 10,
        wanted: int = 20,
        hidden: int = 128,
        strength: float = 1.0,
        mse_weight: float = 10.0,
    ) -> None:
        super().__init__(setting)
        self.wanted, self.strength, self.mse_weight = wanted, strength, mse_weight
        dim, n_base = setting.dim, setting.n_base
        self.network = mlp([3 * dim, hidden, hidden, dim], setting.generator, zero_last=True)
        self.register_buffer("centroids", torch.zeros(n_base, n_centroids, dim))
        self.register_buffer("pairs", torch.zeros(wanted, 2, dim))  # (a, b) to transform novel shots with

    def make(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """G: the y with x : y as a : b; all ``[..., D]``."""
        made: Tensor = self.network(torch.cat([x, a, b], dim=-1))
        return x + b - a + made

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Centroids of every base class, and the pairs that novel shots will be transformed with."""
        N, k, _ = self.centroids.shape
        for c, count in enumerate(pool.counts.tolist()):
            if count < 2:
                raise EpisodeError(
                    f"{self.name} learns from pairs of images of a class, and base class {pool.names[c]!r} "
                    f"has {count}; give it 2 or more, or leave the class out"
                )
            self.centroids[c] = _k_means(pool.of_class(c).float(), k, generator)
        classes = torch.randint(N, (self.wanted,), generator=generator)
        first = torch.randint(k, (self.wanted,), generator=generator)
        second = (first + torch.randint(1, max(2, k), (self.wanted,), generator=generator)) % k
        self.pairs.copy_(
            torch.stack([self.centroids[classes, first], self.centroids[classes, second]], dim=1)
        )

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Logistic regression on shots and what is made of them."""
        return fit_logistic(self.grow(support), base.weights if joint else None, self.strength)

    def grow(self, support: Support) -> Support:
        """The shots and what G makes of them."""
        x = unit(support.features).unsqueeze(3)  # [E, n, K, 1, D]
        pairs = self.pairs[: most_per_shot(support, self.wanted)]  # [T, 2, D]
        E, n, K, _, D = x.shape
        shape = (E, n, K, len(pairs), D)
        made = self.make(x.expand(shape), pairs[:, 0].expand(shape), pairs[:, 1].expand(shape))
        return add_hallucinated(support, made, self.wanted)

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """Analogies between the first two fake novel classes of each episode, for all pairs of the first."""
        assert batch.novel_classes is not None
        left, right = (self.centroids[batch.novel_classes[:, i]] for i in (0, 1))  # [E, k, D]
        E, k, D = left.shape
        first, second = torch.triu_indices(k, k, offset=1, device=left.device)
        a, b = left[:, first], left[:, second]  # [E, P, D]
        moves = (right.unsqueeze(1) - right.unsqueeze(2)).reshape(E, k * k, D)  # [x, y] is y − x
        parallel = cosine_scores(b - a, moves, 1.0)  # [E, P, k²]
        likeness, match = parallel.max(-1)
        x = right.gather(1, (match // k).unsqueeze(-1).expand(-1, -1, D))
        y = right.gather(1, (match % k).unsqueeze(-1).expand(-1, -1, D))
        made = self.make(x, a, b)
        kept = (likeness > 0).to(made.dtype)
        error = (((made - y).square().sum(-1) * kept).sum() / kept.sum().clamp(min=1)).float()
        labels = batch.novel_classes[:, 1:2].expand(-1, len(first))
        scores = cosine_scores(made, batch.all_weights(), self.scale)  # [E, P, N]
        loss = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())
        return StepLosses.with_loss(loss, scores, labels, self.mse_weight * error)


def _k_means(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm from random rows: ``[M, D]`` → ``[k, D]``; rows repeat where they are fewer."""
    start = torch.randperm(len(rows), generator=generator).repeat(-(-k // len(rows)))[:k]
    centres = rows[start.to(rows.device)]
    for _ in range(_ROUNDS):
        owner = F.one_hot(torch.cdist(rows, centres).argmin(-1), k).to(rows.dtype)  # [M, k]
        sizes = owner.sum(0).unsqueeze(-1)
        centres = torch.where(sizes > 0, owner.T @ rows / sizes.clamp(min=1), centres)
    return centres
