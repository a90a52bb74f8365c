"""MAML, and Proto-MAML, which starts at class means: gradient steps that are learned through."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer, support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.inner_loop import gradient_steps, support_loss
from wdae.nn.linear import identity_linear, linear, masked_mean
from wdae.runtime.device import full_precision


class Maml(LearnedMethod):
    """A network that a few gradient steps on the shots adapt as a whole, its start learned through them.

    Chelsea Finn, Pieter Abbeel, Sergey Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep
    Networks", ICML 2017, https://arxiv.org/abs/1703.03400 (algorithm 2), to second order. All weights of the
    network are adapted; the outer loop learns where they start. The number of classes is fixed, and their
    order can matter.

    Departures: the network is one hidden layer and an output on frozen features, not four convolutions. It
    starts from chance, so it trains longer than others.

    Args:
        n_way: the largest number of novel classes.
        hidden: neurons of the hidden layer.
        n_steps, test_steps: inner steps in training and in tests (5 and 10 in the paper).
        rate: their size (0.01 in the paper, for another network).
    """

    name = "maml"
    about = "a small network adapted by gradient steps from a learned start"
    paper = "Finn 2017"
    joint = False
    ordered = True
    training_length = 4
    training_defaults = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}
    second_order = True

    def __init__(
        self,
        setting: Setting,
        n_way: int = 5,
        hidden: int = 64,
        n_steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.1,
    ) -> None:
        super().__init__(setting)
        self.scale.requires_grad_(False)  # the network's own weights set the scale
        self.n_way, self.n_steps, self.test_steps, self.rate = n_way, n_steps, test_steps, rate
        first, last = linear(setting.dim, hidden, setting.generator), linear(hidden, n_way, setting.generator)
        self.start = nn.ParameterList([first.weight, first.bias, last.weight, last.bias])
        with torch.no_grad():
            self.start[2].mul_(0.1)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """The hidden layer centred at the mean of the base-train features."""
        mean = unit(pool.features.float()).mean(0)
        self.start[1].data.copy_(-(self.dim**0.5) * self.start[0].data @ mean)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """The inner loop."""
        examples, n = support_examples(support), support.features.shape[1]
        self.check_n_way(n, self.n_way)
        size = self.dim**0.5  # entries of about unit size
        with full_precision(support.features):
            shots = size * unit(examples.features.float())

            def scores(x: Tensor, first: Tensor, bias: Tensor, last: Tensor, offset: Tensor) -> Tensor:
                hidden = torch.relu(x @ first.transpose(-1, -2) + bias.unsqueeze(1))
                return (hidden @ last.transpose(-1, -2) + offset.unsqueeze(1))[..., :n]

            E = len(shots)
            adapted = gradient_steps(
                lambda *network: support_loss(scores(shots, *network), examples.targets, examples.weight),
                [p.expand(E, *p.shape) for p in self.start],
                [self.rate] * (self.n_steps if self.training else self.test_steps),
                training=self.training,
                second_order=self.second_order,
            )

        def scorer(queries: Tensor) -> Tensor:
            with full_precision(queries):
                return scores(size * unit(queries.float()), *adapted)

        return scorer


class ProtoMaml(LearnedMethod):
    """A linear classifier that starts at the class means and is adapted by gradient steps, learned through.

    Eleni Triantafillou et al., "Meta-Dataset: A Dataset of Datasets for Learning to Learn from Few Examples",
    ICLR 2020, https://arxiv.org/abs/1903.03096 (Proto-MAML), after Chelsea Finn, Pieter Abbeel, Sergey
    Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017,
    https://arxiv.org/abs/1703.03400 (algorithm 2), which is :class:`Maml`. Scores are ``γ · w_c · (g ⊙ f) +
    b_c`` with f an embedded feature. The inner loop adapts rows w, biases b and gain g of an episode; the
    outer loop learns their start and the step sizes (second order).

    Departures: only this classifier is adapted, on frozen features; the linear embedding below it (identity
    at the start) is learned by the outer loop alone. Step sizes are learned (Meta-SGD, Li et al. 2017,
    https://arxiv.org/abs/1707.09835). Rows start at the class means at unit length; biases at 0. Chosen on
    validation classes of an earlier embedded bank over rows that start at zero, which are ahead at one shot
    and behind nearest mean at five.

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
