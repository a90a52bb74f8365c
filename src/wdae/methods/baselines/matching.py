"""Matching networks."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.baselines.attention_lstm import AttentionLSTM
from wdae.methods.examples import support_examples
from wdae.methods.learned import ANY_SHOTS, LearnedMethod, Random, Setting
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.linear import identity_linear


class Matching(LearnedMethod):
    """A query's label is the mean of the examples' labels, weighted by a softmax of cosines.

    Oriol Vinyals, Charles Blundell, Timothy Lillicrap, Koray Kavukcuoglu, Daan Wierstra, "Matching Networks
    for One Shot Learning", NeurIPS 2016, https://arxiv.org/abs/1606.04080 (eq. 1, 2 and appendix A).

    Departures: embeddings are a linear map on frozen features, started at the identity; cosines are
    multiplied by a learned scale, γ/4 at the start (chosen on validation classes of an earlier embedded bank
    over γ and 1, which is no scale, as in the paper); of the two full-context
    embeddings only that of the query (f) is kept, as that of the support (g) depends on the order of the
    examples; attention is divided by a class's number of examples. A base class is one example, its learned
    weight.

    Args:
        full_context: embed queries in view of the support set.
        hidden: size of that context.
        sharpness: the scale at the start, as a share of γ.
    """

    name = "matching"
    about = "attention over labelled examples"
    paper = "Vinyals 2016"
    training_defaults = ANY_SHOTS

    def __init__(
        self, setting: Setting, full_context: bool = True, hidden: int = 64, sharpness: float = 0.25
    ) -> None:
        super().__init__(replace(setting, scale=sharpness * setting.scale))
        self.embed = identity_linear(setting.dim)
        self.context = (
            AttentionLSTM(setting.dim, hidden, generator=setting.generator) if full_context else None
        )

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Log-probability of each class: a soft maximum over its examples."""
        examples = support_examples(support, unit(base.weights) if joint else None)
        keys = self.embed(examples.features)  # [E, M, D]
        real = examples.weight > 0

        def scorer(queries: Tensor) -> Tensor:
            embedded = self.embed(queries)
            if self.context is not None:
                embedded = self.context(embedded, keys, real)
            return examples.read(cosine_scores(embedded, keys, self.scale))

        return scorer
