"""The paper's starting point: novel weights are means of their shots, base weights stay as learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wdae.generate import novel_estimate
from wdae.methods.base import Adapter, BaseClasses, Method, Support, WeightScorer


@dataclass(frozen=True)
class _InitialAdapter(Adapter):
    base: BaseClasses

    def adapt(self, support: Support, joint: bool = False) -> WeightScorer:
        novel = novel_estimate(support.features, support.mask)
        return WeightScorer(novel, self.base.weights if joint else None, self.base.scale)


class InitialEstimate(Method):
    """Eq. 5 alone, without refinement: nearest class mean by cosine."""

    name: ClassVar[str] = "initial-estimate"

    def on(self, base: BaseClasses) -> Adapter:
        """Nothing to prepare."""
        return _InitialAdapter(base)
