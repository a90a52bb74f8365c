"""The paper's starting point: novel weights are means of their shots, base weights stay as learned."""

from __future__ import annotations

from typing import ClassVar

from wdae.generate import novel_estimate
from wdae.methods.base import BaseClasses, Method, Support, WeightScorer


class InitialEstimate(Method):
    """Eq. 5 alone, without refinement: nearest class mean by cosine."""

    name = "initial-estimate"
    about: ClassVar[str] = "nearest class mean by cosine; where wDAE starts"
    paper: ClassVar[str] = "Gidaris & Komodakis 2019"

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> WeightScorer:
        """Means of the shots beside the learned base weights."""
        novel = novel_estimate(support.features, support.mask)
        return WeightScorer(novel, base.weights if joint else None, base.scale)
