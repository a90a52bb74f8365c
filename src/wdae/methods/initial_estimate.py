"""The initial estimate: novel weights are means of their shots, base weights stay as learned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from wdae.methods.base import BaseClasses, Method, Support, WeightAdapter, WeightScorer
from wdae.methods.calibration import Calibration, balance_scores
from wdae.methods.many_shots import FurtherFit
from wdae.nn.generate import novel_estimate
from wdae.nn.posterior import Posterior


class InitialEstimate(Method):
    """Nearest class mean by cosine: eq. 5 alone, without refinement.

    Spyros Gidaris, Nikos Komodakis, "Generating Classification Weights with GNN Denoising Autoencoders for
    Few-Shot Learning", CVPR 2019, https://arxiv.org/abs/1905.01102.

    Args:
        balance: slopes and offsets of novel scores; None leaves them as they are, as in the paper.
        posterior: how classes with enough shots are fitted further; None: not, as in the paper.

    >>> from wdae import few_way, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> result = few_way(InitialEstimate(), bank, n_shot=1, n_episodes=50)
    >>> result.metrics["novel"].mean > 0.2  # chance
    True
    """

    name = "initial-estimate"
    about = "nearest class mean by cosine; where wDAE starts"
    paper = "Gidaris & Komodakis 2019"

    def __init__(self, balance: Calibration | None = None, posterior: Posterior | None = None) -> None:
        self.balance = balance
        self.posterior = posterior

    def describe(self) -> dict[str, Any]:
        """Slopes and offsets of novel scores, where they are balanced."""
        return {} if self.balance is None else self.balance.describe()

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> WeightScorer:
        """Means of the shots beside the learned base weights."""
        return self.on(base).adapt(support, joint)

    def on(self, base: BaseClasses) -> EstimateAdapter:
        """Set up on base classes."""
        return EstimateAdapter(self, base)


@dataclass(frozen=True)
class EstimateAdapter(WeightAdapter):
    """The initial estimate beside given base classes."""

    method: InitialEstimate
    base: BaseClasses

    def estimate(self, support: Support) -> Tensor:
        """Means of the shots."""
        return novel_estimate(support.features, support.mask)

    def weigh(self, estimates: Tensor, shots: Tensor, joint: bool = False) -> WeightScorer:
        """The estimates as they are, their scores balanced where the method has a balance."""
        scorer = WeightScorer(estimates, self.base.weights if joint else None, self.base.scale)
        return balance_scores(scorer, shots, self.base.weights.shape[-2], self.method.balance)

    def fit(
        self, scorer: WeightScorer, shots: Tensor, support: Support, rows: Tensor | None = None
    ) -> WeightScorer:
        """Classes with enough shots are fitted further, where the method has a posterior."""
        return self._further.fit(scorer, shots, support, rows, self.method.posterior, self.method.balance)

    @cached_property
    def _further(self) -> FurtherFit:
        return FurtherFit(self.base.weights, None)
