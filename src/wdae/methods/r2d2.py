"""R2-D2: a ridge-regression head in closed form, differentiated through."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.examples import LinearScorer, examples_of
from wdae.methods.learned import LearnedMethod
from wdae.nn.maps import identity_map
from wdae.nn.ridge import ridge


class R2D2(LearnedMethod):
    """Bertinetto et al. 2019, "Meta-learning with differentiable closed-form solvers", section 3.

    One-hot labels are regressed on embedded shots with a learned penalty λ; scores are a learned α times the
    prediction.

    Departures: the embedding is a linear map on frozen features, started at the identity; the paper's β is
    left out, as adding the same number to all scores changes neither loss nor decision. With base classes
    asked for, the solved rows stand beside the embedded base weights in a cosine classifier.

    Args:
        penalty: λ, where it starts; 0 or more.
        learn_penalty: learn log λ; λ = 0 stays as it is.
    """

    name = "r2d2"
    about: ClassVar[str] = "ridge regression in closed form, in a learned embedding"
    paper: ClassVar[str] = "Bertinetto 2019"
    training_defaults: ClassVar[dict[str, Any]] = {"shots": (1, 5)}

    def __init__(
        self,
        dim: int,
        n_base: int,
        scale: float = 10.0,
        generator: torch.Generator | None = None,
        penalty: float = 1.0,
        learn_penalty: bool = True,
    ) -> None:
        super().__init__(dim, n_base, scale)
        if penalty < 0:
            raise ModelError(f"a ridge penalty is 0 or more, got penalty={penalty}")
        self.embed = identity_map(dim)
        self.log_penalty = torch.nn.Parameter(
            torch.tensor(penalty).log(), requires_grad=learn_penalty and penalty > 0
        )

    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """Solve for the weights of the novel classes."""
        examples = examples_of(support)
        weights = ridge(
            self.embed(examples.features), examples.targets, self.log_penalty.exp(), examples.weight
        )
        scorer: Scorer = LinearScorer(weights, None, self.scale)
        if joint:
            scorer = WeightScorer(weights, self.embed(base.weights), self.scale)
        return lambda queries: scorer(self.embed(queries))
