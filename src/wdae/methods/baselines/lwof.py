"""LwoF: novel weights from feature averages and attention over base weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Support
from wdae.methods.learned import ANY_SHOTS, Setting, WeightGenerator
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import identity_linear, masked_mean


class LwofAverage(WeightGenerator):
    """LwoF with feature averaging: ``w = g_avg ⊙ mean(ẑ)``, with a learned gain that starts at 1.

    Spyros Gidaris, Nikos Komodakis, "Dynamic Few-Shot Visual Learning without Forgetting", CVPR 2018,
    https://arxiv.org/abs/1804.09458 (section 3.2).
    """

    name = "lwof-average"
    about = "novel weights from gains on feature averages"
    paper = "Gidaris & Komodakis 2018"
    training_defaults = ANY_SHOTS

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.average_gain = nn.Parameter(torch.ones(setting.dim))

    def novel_weights(self, support: Support, base: BaseClasses) -> Tensor:
        """``w`` ``[E, n, D]``."""
        return self.average_gain * masked_mean(unit(support.features), support.mask)


class LwofAttention(LwofAverage):
    """LwoF with attention: to the average it adds what the shots attend to among the base weights.

    Gidaris and Komodakis, CVPR 2018, https://arxiv.org/abs/1804.09458 (section 3.2):
    ``w = g_avg ⊙ mean(ẑ) + g_att ⊙ mean_k Σ_b softmax_b(γ_a cos(Q ẑ_k + q, key_b)) ŵ_b``. A base class that
    plays novel is left out of the sum.

    Departures: keys start at the base classes' mean features, not at random, and g_att at 0, not 1, so
    learning begins at nearest mean; base weights do not go on learning, and features are stored, without
    the crops and flips of the authors' second stage.
    """

    name = "lwof-attention"
    about = "feature averages plus attention over base weights"

    def __init__(self, setting: Setting, attention_gain: float = 0.0, attention_scale: float = 10.0) -> None:
        super().__init__(setting)
        self.attention_gain = nn.Parameter(torch.full((setting.dim,), attention_gain))
        self.attention_scale = nn.Parameter(torch.tensor(attention_scale))
        self.keys = nn.Parameter(torch.randn(setting.n_base, setting.dim, generator=setting.generator))
        self.query = identity_linear(setting.dim, bias=True)

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Keys at the mean features of the base classes."""
        self.keys.data.copy_(pool.unit_means(torch.float32))

    def novel_weights(self, support: Support, base: BaseClasses) -> Tensor:
        """``w`` ``[E, n, D]``."""
        self.check_n_base(base)
        shots = unit(support.features)
        E, n, K, _ = shots.shape
        keys = self.keys if base.classes is None else self.keys[base.classes]
        affinity = cosine_scores(self.query(shots).flatten(1, 2), keys, self.attention_scale)  # [E, nK, N]
        attended = torch.softmax(affinity, -1) @ unit(base.weights)  # [E, nK, D]
        attended = masked_mean(attended.view(E, n, K, -1), support.mask)
        return super().novel_weights(support, base) + self.attention_gain * attended
