"""Methods with parameters: the same interface, and an objective that the stage-2 loop minimises.

By default a learned method is trained as it is tested: adapt to the support of fake novel classes, score the
queries, cross-entropy. It only has to implement :meth:`LearnedMethod.learn`.

In joint methods a base class is its learned weight, not the mean of its features. Chosen on validation
classes of an earlier embedded bank: with weights every method that starts near nearest mean is far ahead
among base and novel classes, untrained, at one shot and at five.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.errors import ModelError
from wdae.methods.base import Adapter, BaseClasses, Method, Scorer, Support, WeightScorer
from wdae.methods.calibration import Calibration, balance_scores

Random = torch.Generator | None
"""Where random numbers come from; None: torch's default."""

ANY_SHOTS: dict[str, Any] = {"shots": (1, 5)}
"""Training of methods for any number of classes: episodes of one shot and of five."""
FEW_WAY: dict[str, Any] = {**ANY_SHOTS, "n_fake": 5, "queries_per_novel": 10}
"""Training of methods that learn the few-way episodes they are tested on, without base classes."""


@dataclass(frozen=True)
class Setting:
    """What a learned method is made for.

    Args:
        dim: feature size D.
        n_base: number of base classes.
        scale: γ of the base classifier.
        generator: source of initial values.

    >>> from wdae.methods import find
    >>> method = find("prototypical")(Setting(dim=8, n_base=4))
    >>> method.name
    'prototypical'
    """

    dim: int
    n_base: int
    scale: float = 10.0
    generator: Random = None


@dataclass(frozen=True)
class TrainingBatch:
    """E training episodes as features, all rows of unit length.

    Shapes: base ``[E, N, D]`` (learned weights of the classes that stay base), novel_targets ``[E, n, D]``
    (learned weights of the fake novel ones), support ``[E, n, K, D]`` and its mask or None, queries
    ``[E, Q, D]``, labels ``[E, Q]`` (base first, then novel); base_classes ``[E, N]`` and novel_classes
    ``[E, n]``: which of all base classes they are. ``joint``: whether queries of base classes are among them.

    >>> rows = torch.eye(8)
    >>> batch = TrainingBatch(
    ...     base=rows[None, :4], novel_targets=rows[None, 4:6],
    ...     support=rows[4:6].view(1, 2, 1, 8), support_mask=None,
    ...     queries=rows[None, 4:6], labels=torch.tensor([[4, 5]]),
    ...     base_classes=torch.tensor([[0, 1, 2, 3]]), novel_classes=torch.tensor([[4, 5]]))
    >>> batch.all_weights().shape
    torch.Size([6, 8])
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
    """What a step reports; ``total`` is what is minimised.

    >>> losses = StepLosses(torch.tensor(1.5), torch.tensor(0.5), torch.tensor(1.0), torch.tensor(0.25))
    >>> float(losses.total), float(losses.accuracy)
    (1.5, 0.25)
    """

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
        setting: sizes, and the γ at which the method's own scale starts.

    >>> from wdae.methods import make
    >>> method = make("prototypical", dim=8, n_base=4)
    >>> isinstance(method, LearnedMethod), sum(p.numel() for p in method.parameters()) > 0
    (True, True)
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.dim, self.n_base = setting.dim, setting.n_base
        self.scale = nn.Parameter(torch.tensor(float(setting.scale)))
        self.options: Mapping[str, Any] = {}  # as given to the registry; saved with it
        self.start_kept = False  # whether training gained nothing, so that it is as it started; saved, too

    @abstractmethod
    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Learn the novel classes of E episodes; ``generator`` draws what is random in training."""

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Learn the novel classes of E episodes, after a check of sizes."""
        self.refuse_joint(joint)
        self.check_sizes(base, support)
        return self.learn(support, base, joint)

    def on(self, base: BaseClasses) -> Adapter:
        """Set up on base classes of the feature size it was trained on."""
        self.check_sizes(base)
        return super().on(base)

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """The meta-training objective: learn from the support, classify the queries."""
        scores, labels = self.score_batch(batch, generator)
        return StepLosses.of(scores, labels)

    def score_batch(self, batch: TrainingBatch, generator: Random = None) -> tuple[Tensor, Tensor]:
        """Scores and labels of a batch's queries, over all classes or, where not joint, the novel ones."""
        support, base = episode_inputs(batch)
        joint = self.joint and batch.joint
        scorer = self.learn(support, base, joint, generator)
        return scorer(batch.queries), batch.labels if joint else batch.labels - batch.base.shape[1]

    def check_sizes(self, base: BaseClasses, support: Support | None = None) -> None:
        """Refuse features of another size than the method was trained on."""
        sizes = {"the base weights have": base.weights.shape[-1]}
        if support is not None:
            sizes["the support features have"] = support.features.shape[-1]
        for what, size in sizes.items():
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

    def check_n_way(self, n_novel: int, n_way: int) -> None:
        """Refuse more novel classes than a network with an output for each was made for."""
        if n_novel > n_way:
            raise ModelError(
                f"{self.name} was made for {n_way} novel classes, got {n_novel}; give n_way={n_novel}"
            )

    def describe(self) -> dict[str, Any]:
        """That it stands as it started, where it does: tables mark it †."""
        return super().describe() | ({"start_kept": True} if self.start_kept else {})

    def n_parameters(self) -> int:
        """How many numbers are learned."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class WeightGenerator(LearnedMethod):
    """A learned method whose outcome is class weights, compared by cosine; it may have a balance.

    ``balance``: slopes and offsets of novel scores, found after training; None: scores as they come.
    """

    balance: Calibration | None = None

    @abstractmethod
    def novel_weights(self, support: Support, base: BaseClasses) -> Tensor:
        """Weights of the novel classes ``[E, n, D]``."""

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Cosine with generated novel and learned base weights."""
        novel = self.novel_weights(support, base)
        scorer = WeightScorer(novel, base.weights if joint else None, self.scale)
        return balance_scores(scorer, support.shots, base.weights.shape[-2], self.balance)

    def describe(self) -> dict[str, Any]:
        """Slopes and offsets of novel scores, where they are balanced."""
        return super().describe() | ({} if self.balance is None else self.balance.describe())


def episode_inputs(batch: TrainingBatch) -> tuple[Support, BaseClasses]:
    """A training batch as what :meth:`LearnedMethod.learn` takes (which has a scale of its own)."""
    return Support(batch.support, batch.support_mask), BaseClasses(batch.base, classes=batch.base_classes)
