"""The paper's starting point: novel weights are means of their shots, base weights stay as learned."""

from __future__ import annotations

from typing import ClassVar

from wdae.methods.base import BaseClasses, Method, Support, WeightScorer
from wdae.nn.generate import novel_estimate


class InitialEstimate(Method):
    """Eq. 5 alone, without refinement: nearest class mean by cosine.

    >>> from wdae import few_way, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> result = few_way(InitialEstimate(), bank, n_shot=1, n_episodes=50)
    >>> result.metrics["novel"].mean > 0.2  # chance
    True
    """

    name = "initial-estimate"
    about: ClassVar[str] = "nearest class mean by cosine; where wDAE starts"
    paper: ClassVar[str] = "Gidaris & Komodakis 2019"

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> WeightScorer:
        """Means of the shots beside the learned base weights."""
        novel = novel_estimate(support.features, support.mask)
        return WeightScorer(novel, base.weights if joint else None, base.scale)
