"""Conditionally shifted neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import support_examples
from wdae.methods.learned import FEW_WAY, LearnedMethod, Random, Setting
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import linear, mlp, orthogonal_linear, principal_init

_FINEST = 10.0  # p of the preprocessing: gradients under e^-p count by their value, others by their logarithm


def preprocessed(gradient: Tensor) -> Tensor:
    """Size and sign of a gradient, so that small and large ones can be told apart: ``[...]`` → ``[..., 2]``.

    Andrychowicz et al., "Learning to learn by gradient descent by gradient descent", NeurIPS 2016.
    """
    size = gradient.abs().clamp(min=math.exp(-_FINEST))
    large = gradient.abs() >= math.exp(-_FINEST)
    first = torch.where(large, size.log() / _FINEST, -1.0)
    second = torch.where(large, gradient.sign(), math.exp(_FINEST) * gradient)
    return torch.stack([first, second], dim=-1)


class ShiftedNeurons(LearnedMethod):
    """A classifier whose neurons are shifted by what a memory of the shots' errors brings.

    Tsendsuren Munkhdalai, Xingdi Yuan, Soroush Mehri, Adam Trischler, "Rapid Adaptation with Conditionally
    Shifted Neurons", ICML 2018, https://arxiv.org/abs/1712.09926 (adaResNet and its kin). Shots are
    classified without shifts first. From their errors, by direct feedback (``σ'(a_j) ∂L/∂a_out`` for a
    hidden neuron j), small networks make shifts, kept under keys of the shots. A query attends to the keys;
    its hidden neurons become ``σ(a) + σ(β)`` and its scores ``a + β``, with β the shifts it brings. The order
    of the classes can matter, and their number is fixed.

    Departures: features are frozen, and the shifted network is one hidden layer and the output, where the
    paper shifts blocks of a ResNet; the output's shifts start as minus the shots' errors and attention at
    the base classifier's scale, so that learning begins at attention over the shots.

    Args:
        n_way: the largest number of novel classes.
        hidden: neurons of the hidden layer.
        key: size of the keys.
    """

    name = "shifted-neurons"
    about = "a classifier shifted by a memory of its errors on the shots"
    paper = "Munkhdalai 2018"
    joint: ClassVar[bool] = False
    ordered: ClassVar[bool] = True
    training_defaults: ClassVar[Mapping[str, Any]] = FEW_WAY | {"optimiser": "adam", "learning_rate": 1e-3}

    def __init__(self, setting: Setting, n_way: int = 5, hidden: int = 32, key: int = 128) -> None:
        super().__init__(setting)  # its scale is that of attention
        self.n_way = n_way
        dim, generator = setting.dim, setting.generator
        self.key = orthogonal_linear(dim, min(key, dim), generator)
        self.first = linear(dim, hidden, generator)
        self.last = linear(hidden, n_way, generator)
        self.shift_hidden = mlp([2 * n_way, 20, 20, 1], generator)
        self.shift_output = mlp([2, 20, 20, 1], generator, zero_last=True)
        self.strength = nn.Parameter(torch.tensor(float(setting.scale)))
        with torch.no_grad():
            self.last.weight.mul_(0.1)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Keys along the principal directions of the base-train features."""
        principal_init(self.key, pool.features)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Fill the memory with the shots."""
        n = support.features.shape[1]
        self.check_n_way(n, self.n_way)
        examples = support_examples(support)
        shots = unit(examples.features)
        hidden = self.first(shots)  # [E, M, H]
        output = self.last(F.relu(hidden)).float()
        output = output.masked_fill(torch.arange(self.n_way, device=output.device) >= n, -torch.inf)
        error = torch.softmax(output, -1) - F.pad(examples.targets, (0, self.n_way - n))  # ∂L/∂a, [E, M, C]
        inputs = preprocessed((hidden > 0).unsqueeze(-1) * error.unsqueeze(2)).flatten(-2)  # [E, M, H, 2C]
        of_hidden = self.shift_hidden(inputs).squeeze(-1)  # [E, M, H]
        of_output = self.shift_output(preprocessed(error)).squeeze(-1) - self.strength * error  # [E, M, C]
        keys, absent = self.key(shots), (examples.weight == 0).unsqueeze(1)

        def scorer(queries: Tensor) -> Tensor:
            rows = unit(queries)
            affinity = cosine_scores(self.key(rows), keys, self.scale).float()  # [E, Q, M]
            attention = torch.softmax(affinity.masked_fill(absent, -torch.inf), -1)
            shifted = F.relu(self.first(rows)) + F.relu(attention @ of_hidden.to(attention.dtype))
            scores: Tensor = self.last(shifted) + attention @ of_output.to(attention.dtype)
            return scores[..., :n]

        return scorer
