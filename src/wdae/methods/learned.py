"""Methods with parameters: the same interface, and an objective that the stage-2 loop minimises.

By default a learned method is trained the way it is tested: adapt to the support of fake novel classes,
score the queries, cross-entropy. So one function, :meth:`LearnedMethod.learn`, is all it has to bring.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.errors import ModelError
from wdae.methods.base import Adapter, BaseClasses, Method, Scorer, Support


@dataclass(frozen=True)
class TrainingBatch:
    """E training episodes as features, all rows of unit length.

    Shapes: base ``[E, N, D]`` (learned weights of the classes that stay base), novel_targets ``[E, n, D]``
    (learned weights of the fake novel ones), support ``[E, n, K, D]`` and its mask or None, queries
    ``[E, Q, D]``, labels ``[E, Q]`` (base first, then novel); base_classes ``[E, N]`` and novel_classes
    ``[E, n]``: which of all base classes they are. ``joint``: whether queries of base classes are among them.
    """

    base: Tensor
    novel_targets: Tensor
    support: Tensor
    support_mask: Tensor | None
    queries: Tensor
    labels: Tensor
    base_classes: Tensor | None = None
    novel_classes: Tensor | None = None
    joint: bool = True

    def all_weights(self) -> Tensor:
        """Learned weights of all base classes, those that play novel included, in their order ``[N, D]``."""
        assert self.base_classes is not None and self.novel_classes is not None
        order = torch.cat([self.base_classes[0], self.novel_classes[0]]).argsort()
        return torch.cat([self.base[0], self.novel_targets[0]])[order]


@dataclass(frozen=True)
class StepLosses:
    """What a step reports; ``total`` is what is minimised."""

    total: Tensor
    reconstruction: Tensor
    classification: Tensor
    accuracy: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, penalty: Tensor | None = None) -> StepLosses:
        """Cross-entropy of scores ``[E, Q, C]`` and labels ``[E, Q]``, plus a penalty of the method's own."""
        classification = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())
        return cls.with_loss(classification, scores, labels, penalty)

    @classmethod
    def with_loss(
        cls, classification: Tensor, scores: Tensor, labels: Tensor, penalty: Tensor | None = None
    ) -> StepLosses:
        """The same with another loss than cross-entropy."""
        total = classification if penalty is None else classification + penalty
        extra = classification.new_zeros(()) if penalty is None else penalty.detach()
        accuracy = (scores.argmax(-1) == labels).float().mean()
        return cls(total, extra, classification.detach(), accuracy)


class LearnedMethod(Method, nn.Module):
    """A method whose parameters are learned on episodes of fake novel classes.

    Args:
        dim: feature size D.
        n_base: number of base classes.
        scale: γ of the base classifier, where the method's own scale starts.
    """

    def __init__(self, dim: int, n_base: int, scale: float = 10.0) -> None:
        super().__init__()
        self.dim, self.n_base = dim, n_base
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.options: Mapping[str, Any] = {}  # as given to the registry; kept in its file

    @abstractmethod
    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """Learn the novel classes of E episodes; ``generator`` draws what is random in training."""

    def prepare(self, pool: ClassSet, generator: torch.Generator) -> None:
        """Take statistics of the base-train images, before training; most methods need none."""

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Learn the novel classes of E episodes, after a look at whether everything fits."""
        self.refuse_joint(joint)
        self.check_sizes(base, support)
        return self.learn(support, base, joint)

    def on(self, base: BaseClasses) -> Adapter:
        """Set up on base classes of the feature size it was trained on."""
        self.check_sizes(base)
        return super().on(base)

    def forward(self, batch: TrainingBatch, generator: torch.Generator | None = None) -> StepLosses:
        """The meta-training objective: learn from the support, classify the queries."""
        scores, labels = self.score_batch(batch, generator)
        return StepLosses.of(scores, labels)

    def score_batch(
        self, batch: TrainingBatch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores and labels of a batch's queries, over all classes or, where not joint, the novel ones."""
        support, base = episode_inputs(batch)
        joint = self.joint and batch.joint
        scorer = self.learn(support, base, joint, generator)
        return scorer(batch.queries), batch.labels if joint else batch.labels - batch.base.shape[1]

    def check_sizes(self, base: BaseClasses, support: Support | None = None) -> None:
        """Refuse features of another size than the method was trained on."""
        for what, size in (
            ("the base weights have", base.weights.shape[-1]),
            ("the support features have", self.dim if support is None else support.features.shape[-1]),
        ):
            if size != self.dim:
                raise ModelError(
                    f"{self.name} was trained on features of size {self.dim}, {what} {size}; use a bank from "
                    "the backbone it was trained on"
                )

    def check_n_base(self, base: BaseClasses) -> None:
        """Refuse other base classes, for methods that keep something for each of them."""
        if base.classes is None and base.weights.shape[-2] != self.n_base:
            raise ModelError(
                f"{self.name} was trained with {self.n_base} base classes and keeps something for each; this "
                f"bank has {base.weights.shape[-2]}; train it on this bank"
            )

    def n_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def episode_inputs(batch: TrainingBatch) -> tuple[Support, BaseClasses]:
    """A training batch as what :meth:`LearnedMethod.learn` takes (which has a scale of its own)."""
    return Support(batch.support, batch.support_mask), BaseClasses(batch.base, classes=batch.base_classes)
