"""R2-D2: ridge regression in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.examples import LinearScorer, support_examples
from wdae.methods.learned import ANY_SHOTS, FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import identity_linear
from wdae.nn.ridge import ridge


def _log_penalty(penalty: float, learned: bool) -> torch.nn.Parameter:
    if penalty < 0:
        raise ModelError(f"a ridge penalty is 0 or more, got penalty={penalty}")
    return torch.nn.Parameter(torch.tensor(penalty).log(), requires_grad=learned and penalty > 0)


class R2D2(LearnedMethod):
    """Ridge regression of one-hot labels on embedded shots, solved in closed form; scores are ``αWx + β``.

    Luca Bertinetto, João Henriques, Philip Torr, Andrea Vedaldi, "Meta-learning with Differentiable
    Closed-form Solvers", ICLR 2019, https://arxiv.org/abs/1805.08136 (section 3). The penalty λ and α are
    learned; β is the same for all classes of an episode, so that no softmax sees it, and stays at 0.

    Departures: the embedding is a linear map on frozen features of unit length, started at the identity, in
    place of convolutions; α starts at the base classifier's scale, not at 1.

    Args:
        penalty: λ, where it starts; 0 or more.
        learn_penalty: learn log λ; λ = 0 stays as it is.
    """

    name = "r2d2"
    about = "ridge regression in closed form, in a learned embedding"
    paper = "Bertinetto 2019"
    joint: ClassVar[bool] = False
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"learning_rate": 1e-3}

    def __init__(self, setting: Setting, penalty: float = 1.0, learn_penalty: bool = True) -> None:
        super().__init__(setting)  # α is its scale
        self.embed = identity_linear(setting.dim)
        self.offset = torch.nn.Parameter(torch.zeros(()), requires_grad=False)  # β: no gradient reaches it
        self.log_penalty = _log_penalty(penalty, learn_penalty)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Solve for the weights of the novel classes."""
        examples = support_examples(Support(unit(support.features), support.mask))
        weights = ridge(
            self.embed(examples.features), examples.targets, self.log_penalty.exp(), examples.weight
        )
        scorer = LinearScorer(weights, None, self.scale)
        return lambda queries: scorer(self.embed(unit(queries))) + self.offset


class RidgeCosine(LearnedMethod):
    """R2-D2's solver with cosine scores, so that base classes can stand beside novel ones.

    After Luca Bertinetto, João Henriques, Philip Torr, Andrea Vedaldi, "Meta-learning with Differentiable
    Closed-form Solvers", ICLR 2019, https://arxiv.org/abs/1805.08136 (section 3), but not that system, which
    is :class:`R2D2`. The penalty λ is learned; the solved rows are the classes' weights.

    Departures: the embedding is a linear map on frozen features, started at the identity; scores are scaled
    cosines with the solved rows, in place of αWx + β, so embedded base weights can stand beside them and a
    large λ gives nearest mean. Chosen on validation classes of an earlier embedded bank: this form over a
    regression with base weights as examples; λ = 3 at the start over 1, 10, 30 and 100; the learning rate
    over one ten times as high.

    Args:
        penalty: λ, where it starts; 0 or more.
        learn_penalty: learn log λ; λ = 0 stays as it is.
    """

    name = "ridge-cosine"
    about = "ridge regression in closed form, scored by cosine"
    paper = "after Bertinetto 2019"
    training_defaults: ClassVar[Mapping[str, Any]] = ANY_SHOTS | {"learning_rate": 1e-3}

    def __init__(self, setting: Setting, penalty: float = 3.0, learn_penalty: bool = True) -> None:
        super().__init__(setting)
        self.embed = identity_linear(setting.dim)
        self.log_penalty = _log_penalty(penalty, learn_penalty)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Solve for the weights of the novel classes."""
        examples = support_examples(support)
        weights = ridge(
            self.embed(examples.features), examples.targets, self.log_penalty.exp(), examples.weight
        )
        known = self.embed(base.weights) if joint else None
        scorer = WeightScorer(weights, known, self.scale)
        return lambda queries: scorer(self.embed(queries))
