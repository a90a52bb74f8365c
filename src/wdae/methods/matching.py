"""Matching networks: attention over all labelled examples."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import examples_of
from wdae.methods.learned import LearnedMethod
from wdae.nn.context import SetContext
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.maps import identity_map


class Matching(LearnedMethod):
    """Vinyals et al. 2016, "Matching networks for one shot learning", eq. 1, 2 and appendix A.

    A query's label is the mean of the examples' labels, weighed by a softmax of cosines.

    Departures: embeddings are a linear map on frozen features, started at the identity; the cosines are
    multiplied by a learned scale; of the two full-context embeddings only that of the query (f) is kept, as
    that of the support (g) depends on the order of the examples; attention is divided by a class's number of
    examples, which changes nothing where all classes have as many. A base class is one example, its learned
    weight.
    """

    name = "matching"
    about: ClassVar[str] = "attention over labelled examples"
    paper: ClassVar[str] = "Vinyals 2016"
    training_defaults: ClassVar[dict[str, Any]] = {"shots": (1, 5)}

    def __init__(
        self,
        dim: int,
        n_base: int,
        scale: float = 10.0,
        generator: torch.Generator | None = None,
        full_context: bool = True,
        hidden: int = 64,
    ) -> None:
        super().__init__(dim, n_base, scale)
        self.embed = identity_map(dim)
        self.context = SetContext(dim, hidden, generator=generator) if full_context else None

    def learn(
        self, support: Support, base: BaseClasses, joint: bool, generator: torch.Generator | None = None
    ) -> Scorer:
        """Log-probability of each class: a soft maximum over its examples."""
        examples = examples_of(support, unit(base.weights) if joint else None)
        keys = self.embed(examples.features)  # [E, M, D]
        real = examples.weight > 0

        def scorer(queries: Tensor) -> Tensor:
            embedded = self.embed(queries)
            if self.context is not None:
                embedded = self.context(embedded, keys, real)
            return examples.read(cosine_scores(embedded, keys, self.scale))

        return scorer
