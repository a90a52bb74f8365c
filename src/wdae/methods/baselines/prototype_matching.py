"""Prototype matching networks with a learned hallucinator."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.baselines.attention_lstm import AttentionLSTM
from wdae.methods.examples import add_hallucinated, most_per_shot
from wdae.methods.learned import ANY_SHOTS, LearnedMethod, Random, Setting
from wdae.nn.cosine import unit
from wdae.nn.linear import masked_mean, mlp


class PrototypeMatchingH(LearnedMethod):
    """Prototypes of shots and hallucinated examples, with queries embedded in view of them.

    Yu-Xiong Wang, Ross Girshick, Martial Hebert, Bharath Hariharan, "Low-Shot Learning from Imaginary Data",
    CVPR 2018, https://arxiv.org/abs/1801.05401 (sections 4.2 and 4.3). A hallucinator G(x, noise) makes up
    examples and is trained end to end with the classifier: class means, queries embedded by the attention
    LSTM of matching networks, cosines.

    Departures: the contextual embedding of the training set (a bidirectional LSTM) is left out, as it depends
    on the order of the classes; G is residual, its last layer zero at the start, where the authors start
    from identity blocks; all shots of an episode share their noise, so order does not matter, and at test
    time the noise is fixed. A base class is its learned weight.

    Args:
        wanted: examples a class should have, made-up ones included.
        hidden: width of G's two hidden layers, and of the context.
        noise_dim: size of G's noise.
    """

    name = "prototype-matching-h"
    about = "class means of shots and learned made-up examples, in context"
    paper = "Wang (Y.-X.) 2018"
    training_defaults = ANY_SHOTS
    noise: Tensor

    def __init__(self, setting: Setting, wanted: int = 5, hidden: int = 64, noise_dim: int = 16) -> None:
        super().__init__(setting)
        self.wanted = wanted
        dim, generator = setting.dim, setting.generator
        self.network = mlp([dim + noise_dim, hidden, hidden, dim], generator, zero_last=True)
        self.context = AttentionLSTM(dim, hidden, generator=generator)
        self.register_buffer("noise", torch.randn(wanted, noise_dim, generator=generator))

    def make(self, shots: Tensor, noise: Tensor) -> Tensor:
        """G for every pair of shot and noise: ``[E, n, K, D]``, ``[T, Z]`` → ``[E, n, K, T, D]``."""
        E, n, K, D = shots.shape
        x = shots.unsqueeze(3).expand(E, n, K, len(noise), D)
        made: Tensor = self.network(torch.cat([x, noise.expand(E, n, K, -1, -1)], dim=-1))
        return x + made

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Prototypes of real and made-up shots; queries in view of them."""
        shots = unit(support.features)
        # At least one example a shot is made up, so that training with many shots reaches G as well.
        noise = self.noise[: most_per_shot(support, self.wanted, least=1)]
        if self.training:
            noise = torch.randn(noise.shape, device=noise.device, generator=generator)
        grown = add_hallucinated(Support(shots, support.mask), self.make(shots, noise), self.wanted, least=1)
        novel = masked_mean(grown.features, grown.mask)  # [E, n, D]
        known = base.weights if joint else None
        seen = novel if known is None else torch.cat([known.expand(len(novel), -1, -1), novel], dim=1)
        scorer = WeightScorer(novel, known, self.scale)
        return lambda queries: scorer(self.context(unit(queries), unit(seen)))
