"""Relation networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting, StepLosses, TrainingBatch
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import linear, masked_mean


class Relation(LearnedMethod):
    """A network g compares a query with a class's mean shot and gives a relation score in (0, 1).

    Flood Sung, Yongxin Yang, Li Zhang, Tao Xiang, Philip Torr, Timothy Hospedales, "Learning to Compare:
    Relation Network for Few-Shot Learning", CVPR 2018, https://arxiv.org/abs/1711.06025 (eq. 1 and 2). The
    score is fitted to 1 for the right class and 0 for others by mean squared error.

    Departures: features are frozen vectors, so g is fully connected; shots are averaged, not added. It starts
    from chance, so it trains longer than others.
    """

    name = "relation"
    about = "a network compares query and class"
    paper = "Sung 2018"
    joint: ClassVar[bool] = False
    training_length = 4
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}

    def __init__(self, setting: Setting, hidden: int = 64) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the network's own weights set the scale
        dim, generator = setting.dim, setting.generator
        # A layer on a concatenation is a sum of two layers: no pair of vectors is ever laid out.
        self.of_class = linear(dim, hidden, generator)
        self.of_query = linear(dim, hidden, generator)
        self.relate = nn.Sequential(
            nn.ReLU(), linear(hidden, hidden, generator), nn.ReLU(), linear(hidden, 1, generator)
        )

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Relation scores before the sigmoid."""
        classes = masked_mean(unit(support.features), support.mask)  # [E, n, D]
        left = self.of_class(classes)  # [E, n, H]

        def scorer(queries: Tensor) -> Tensor:
            pairs = left.unsqueeze(1) + self.of_query(unit(queries)).unsqueeze(2)  # [E, Q, n, H]
            return self.compare(self.relate(pairs).squeeze(-1), queries, classes)

        return scorer

    def compare(self, related: Tensor, queries: Tensor, classes: Tensor) -> Tensor:
        """The score of g's output ``[E, Q, n]``: as it is."""
        return related

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """Mean squared error of the relation scores (summed over the classes of a query)."""
        scores, labels = self.score_batch(batch, generator)
        wanted = nn.functional.one_hot(labels, scores.shape[-1])
        loss = (torch.sigmoid(scores.float()) - wanted).square().sum(-1).mean()
        return StepLosses.with_loss(loss, scores, labels)


class RelationCosine(Relation):
    """A relation network on top of the cosine of query and class, which it starts from.

    After Sung et al., CVPR 2018, https://arxiv.org/abs/1711.06025, but not that system, which is
    :class:`Relation`: g's output is added to the scaled cosine of the two and starts at zero, so that
    learning begins at nearest mean.
    """

    name = "relation-cosine"
    about = "a network compares query and class, on top of their cosine"
    paper = "after Sung 2018"
    training_length = 1
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"optimiser": "adam", "learning_rate": 3e-4}

    def __init__(self, setting: Setting, hidden: int = 64, cosine: bool = True) -> None:
        super().__init__(setting, hidden)
        self.cosine = cosine  # off in files of before there was a method without
        self.offset = nn.Parameter(torch.tensor(-0.5 * setting.scale if cosine else 0.0))
        self.scale.requires_grad_(cosine)
        if cosine:
            nn.init.zeros_(self.relate[-1].weight)  # type: ignore[arg-type]

    def compare(self, related: Tensor, queries: Tensor, classes: Tensor) -> Tensor:
        """g's output and the scaled cosine."""
        scores = related + self.offset
        return scores + cosine_scores(queries, classes, self.scale) if self.cosine else scores
