"""Proto-MAML: gradient steps from class means, learned through."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer, support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.inner_loop import gradient_steps, support_loss
from wdae.nn.linear import identity_linear, masked_mean
from wdae.runtime.device import full_precision


class ProtoMaml(LearnedMethod):
    """A linear classifier that starts at the class means and is adapted by gradient steps, learned through.

    Eleni Triantafillou et al., "Meta-Dataset: A Dataset of Datasets for Learning to Learn from Few Examples",
    ICLR 2020, https://arxiv.org/abs/1903.03096 (Proto-MAML), after Chelsea Finn, Pieter Abbeel, Sergey
    Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017,
    https://arxiv.org/abs/1703.03400 (algorithm 2). MAML itself, which adapts a whole network from a learned
    start, is not here. Scores are ``γ · w_c · (g ⊙ f) + b_c`` with f an embedded feature. The inner loop
    adapts rows w, biases b and gain g of an episode; the outer loop learns their start and the step sizes
    (second order).

    Departures: only this classifier is adapted, on frozen features; the linear embedding below it (identity
    at the start) is learned by the outer loop alone. Step sizes are learned (Meta-SGD, Li et al. 2017,
    https://arxiv.org/abs/1707.09835). Rows start at the class means at unit length; biases at 0. Chosen on
    validation classes of the embedded bank: at 5 shots 0.15 points above nearest mean, and 0.08 below it from
    zero (at 1 shot 0.98 and 1.25 above).

    Args:
        n_steps: inner steps.
        rate: their size at the start, in units of 1/γ² (gradients and scores both grow with γ).
        from_means: start rows at the class means, at unit length, not at zero.
    """

    name = "proto-maml"
    about = "a head adapted by gradient steps from class means, learned through them"
    paper = "Triantafillou 2020"
    joint = False
    training_defaults = FEW_WAY
    second_order = True

    def __init__(
        self, setting: Setting, n_steps: int = 5, rate: float = 1.0, from_means: bool = True
    ) -> None:
        super().__init__(setting)
        self.from_means = from_means
        self.embed = identity_linear(setting.dim)
        self.gain = nn.Parameter(torch.ones(setting.dim))
        self.log_rates = nn.Parameter(torch.full((n_steps,), rate / setting.scale**2).log())

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """The inner loop."""
        examples = support_examples(support)
        with full_precision(support.features):
            features = self.embed(unit(examples.features.float()))  # [E, M, D]
            (E, _, D), n = features.shape, support.features.shape[1]

            def scores(features: Tensor, rows: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
                return self.scale * ((features * gain) @ rows.transpose(-1, -2) + bias)

            start = features.new_zeros(E, n, D).requires_grad_()
            if self.from_means:
                shots = features.view(E, n, -1, D)
                start = unit(masked_mean(shots, support.mask))
            rows, bias, gain = gradient_steps(
                lambda *head: support_loss(scores(features, *head), examples.targets, examples.weight),
                [
                    start,
                    features.new_zeros(E, 1, n).requires_grad_(),
                    self.gain.expand(E, 1, D),
                ],
                list(self.log_rates.exp()),
                training=self.training,
                second_order=self.second_order,
            )
        # Few rows go back through the embedding, so that many queries need not go forward.
        scorer = LinearScorer((gain * rows) @ self.embed.weight, bias.squeeze(1), self.scale)
        return lambda queries: scorer(unit(queries))


class FirstOrderProtoMaml(ProtoMaml):
    """The same to first order: gradients of the inner loop count as constants (Finn et al. 2017, 5.2)."""

    name = "proto-maml-first-order"
    about = "the same without second derivatives"
    second_order = False
