"""MAML: a start from which a few gradient steps on the shots make a good classifier."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import examples_of
from wdae.methods.learned import LearnedMethod
from wdae.nn.cosine import unit
from wdae.nn.descent import descend, support_loss
from wdae.nn.maps import identity_map
from wdae.nn.precision import full_precision


class Maml(LearnedMethod):
    """Finn, Abbeel, Levine 2017, "Model-agnostic meta-learning for fast adaptation", algorithm 2.

    Scores are ``γ · w_c · (g ⊙ f) + b_c`` with f an embedded feature. The inner loop adapts the head of an
    episode (rows w, biases b, gain g) by gradient steps on the shots; the outer loop learns where they start
    and how long the steps are, through the steps (second order).

    Departures: only the head is adapted, on frozen features; the linear embedding below it (identity at the
    start) is learned by the outer loop alone. All rows start at zero, alike: classes have no order, and a row
    that all classes share would cancel in the softmax. Step sizes are learned (Meta-SGD, Li et al. 2017).

    Args:
        n_steps: inner steps.
        rate: their size at the start, in units of 1/γ² (gradients and scores both grow with γ).
    """

    name = "maml"
    about: ClassVar[str] = "a head adapted by gradient steps, its start learned through them"
    paper: ClassVar[str] = "Finn 2017"
    joint: ClassVar[bool] = False
    training_defaults: ClassVar[dict[str, Any]] = {"n_fake": 5, "queries_per_novel": 10, "shots": (1, 5)}
    second_order: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        n_base: int,
        scale: float = 10.0,
        generator: torch.Generator | None = None,
        n_steps: int = 5,
        rate: float = 4.0,
    ) -> None:
        super().__init__(dim, n_base, scale)
        self.embed = identity_map(dim)
        self.gain = nn.Parameter(torch.ones(dim))
        self.log_rates = nn.Parameter(torch.full((n_steps,), rate / scale**2).log())

    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """The inner loop."""
        examples = examples_of(support)
        with full_precision(support.features):
            features = self.embed(unit(examples.features.float()))  # [E, M, D]
            (E, _, D), n = features.shape, support.features.shape[1]

            def scores(features: Tensor, rows: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
                return self.scale * ((features * gain) @ rows.transpose(-1, -2) + bias)

            rows, bias, gain = descend(
                lambda *head: support_loss(scores(features, *head), examples.targets, examples.weight),
                [
                    features.new_zeros(E, n, D).requires_grad_(),
                    features.new_zeros(E, 1, n).requires_grad_(),
                    self.gain.expand(E, 1, D),
                ],
                list(self.log_rates.exp()),
                training=self.training,
                second_order=self.second_order,
            )
        return lambda queries: scores(self.embed(unit(queries)), rows, bias, gain)


class FirstOrderMaml(Maml):
    """The paper's first-order approximation (section 5.2): gradients of the inner loop count as constants."""

    name = "maml-first-order"
    about: ClassVar[str] = "the same without second derivatives"
    second_order: ClassVar[bool] = False
