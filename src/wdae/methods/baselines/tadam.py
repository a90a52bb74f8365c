"""TADAM: a metric that depends on the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting, StepLosses, TrainingBatch
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import linear, masked_mean, mlp


class Conditioned(nn.Module):
    """A linear layer whose outputs are scaled and shifted by what a network says of the task (FiLM).

    ``γ = 1 + γ₀ g(c)`` and ``β = β₀ h(c)``, with γ₀ and β₀ learned numbers; without a task: 1 and 0.
    """

    def __init__(self, n_in: int, n_out: int, task: int, hidden: int, generator: Random) -> None:
        super().__init__()
        self.layer = linear(n_in, n_out, generator)
        self.task = mlp([task, hidden, 2 * n_out], generator)
        self.strength = nn.Parameter(torch.full((2,), 0.1))  # γ₀ and β₀

    def forward(self, x: Tensor, task: Tensor | None) -> Tensor:
        """``[E, M, n_in]``, task ``[E, 1, T]`` → ``[E, M, n_out]``."""
        out: Tensor = self.layer(x)
        if task is None:
            return out
        gain, shift = self.task(task).chunk(2, -1)
        moved: Tensor = out * (1 + self.strength[0] * gain) + self.strength[1] * shift
        return moved


class Tadam(LearnedMethod):
    """Scaled squared distance to class means, in an embedding that the task's shots condition.

    Boris Oreshkin, Pau Rodriguez, Alexandre Lacoste, "TADAM: Task dependent adaptive metric for improved
    few-shot learning", NeurIPS 2018, https://arxiv.org/abs/1805.10123. The scale α of the metric is learned;
    the task is the mean of its class means in the embedding without conditioning; from it a task embedding
    network predicts γ and β of each layer, whose strengths γ₀ and β₀ are learned under a penalty; beside
    episodes, base classes are classified (co-training).

    Departures: the layers that are conditioned are a residual block of two linear ones on frozen features,
    its last starting at zero, not the convolutions of a ResNet-12; γ₀ and β₀ start at 0.1, not 0; co-training
    is a constant share of the loss, where the paper takes turns with a falling probability.

    Args:
        hidden: size of the block's first layer, and of the task embedding networks.
        co_training: share of the base classes' cross-entropy beside that of the episodes.
        strength_penalty: on the squares of γ₀ and β₀ (0.01 in the paper).
    """

    name = "tadam"
    about = "scaled distance to class means in an embedding that depends on the task"
    paper = "Oreshkin 2018"
    joint: ClassVar[bool] = False
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY

    def __init__(
        self, setting: Setting, hidden: int = 64, co_training: float = 0.1, strength_penalty: float = 0.01
    ) -> None:
        super().__init__(setting)
        self.co_training, self.strength_penalty = co_training, strength_penalty
        dim, generator = setting.dim, setting.generator
        self.first = Conditioned(dim, hidden, dim, hidden, generator)
        self.last = Conditioned(hidden, dim, dim, hidden, generator)
        nn.init.zeros_(self.last.layer.weight)
        nn.init.zeros_(self.last.task[-1].weight)  # type: ignore[arg-type]
        self.base_rows = nn.Parameter(torch.zeros(setting.n_base, dim))

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The classifier of co-training at the learned base weights."""
        self.base_rows.data.copy_(unit(base.weights))

    def embed(self, features: Tensor, task: Tensor | None = None) -> Tensor:
        """The residual block: ``[E, M, D]`` → ``[E, M, D]``."""
        x = unit(features)
        added: Tensor = self.last(F.relu(self.first(x, task)), task)
        return x + added

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Class means under the task's conditioning, as a linear classifier of embedded queries."""
        E, n, K, D = support.features.shape
        shots = support.features.flatten(1, 2)
        plain = masked_mean(self.embed(shots).view(E, n, K, D), support.mask)  # [E, n, D]
        task = plain.mean(1, keepdim=True)  # [E, 1, D]
        means = masked_mean(self.embed(shots, task).view(E, n, K, D), support.mask)
        scorer = LinearScorer(means, -means.square().sum(-1) / 2, self.scale)  # −α‖f − c‖²/2, less ‖f‖²
        return lambda queries: scorer(self.embed(queries, task))

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """Episodes, co-training on the classes of their queries, and the penalty on γ₀ and β₀."""
        assert batch.novel_classes is not None
        scores, labels = self.score_batch(batch, generator)
        classes = batch.novel_classes.gather(1, labels)
        known = cosine_scores(self.embed(batch.queries), self.base_rows, self.scale)
        auxiliary = F.cross_entropy(known.flatten(0, 1).float(), classes.flatten())
        strengths = sum(layer.strength.square().sum() for layer in (self.first, self.last))
        penalty = self.co_training * auxiliary + self.strength_penalty * strengths
        return StepLosses.of(scores, labels, penalty)
