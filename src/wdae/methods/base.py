"""The small interface every method has: adapt to a support set, then score queries.

>>> import torch
>>> from wdae.methods import BaseClasses, Support, make
>>> base = BaseClasses(torch.eye(4, 8), scale=10.0)
>>> support = Support(torch.eye(8)[4:6].view(1, 2, 1, 8))          # 1 episode, 2 classes, 1 shot
>>> scorer = make("initial-estimate").on(base).adapt(support, joint=True)
>>> scorer(torch.eye(8)[None, 4:6]).argmax(-1)                     # base classes first, then novel
tensor([[4, 5]])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from wdae.nn.cosine import unit

Scorer = Callable[[Tensor], Tensor]
"""Queries ``[E, Q, D]`` to scores: ``[E, Q, n]``, or ``[E, Q, N + n]`` (base first) where joint."""


@dataclass(frozen=True)
class BaseClasses:
    """What is known of the base classes: weights ``[N, D]`` and the scale γ of the cosine classifier."""

    weights: Tensor
    scale: float = 10.0

    def to(self, device: torch.device | str) -> BaseClasses:
        """The same on another device."""
        return BaseClasses(self.weights.to(device), self.scale)


@dataclass(frozen=True)
class Support:
    """The shots of the novel classes of E episodes.

    Shapes: features ``[E, n, K, D]``; mask ``[E, n, K]``, False past a class's own shots, or None where all
    classes have K.
    """

    features: Tensor
    mask: Tensor | None = None

    @property
    def shots(self) -> Tensor:
        """Number of shots of each class ``[E, n]``."""
        if self.mask is None:
            E, n, K, _ = self.features.shape
            return torch.full((E, n), K, device=self.features.device)
        return self.mask.sum(-1)


@dataclass(frozen=True)
class WeightScorer:
    """Scores by scaled cosine with class weights.

    Shapes: novel ``[E, n, D]``, base ``[N, D]`` or ``[E, N, D]`` (None: novel classes only).
    """

    novel: Tensor
    base: Tensor | None
    scale: float

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores of queries ``[E, Q, D]``."""
        queries = unit(queries)
        scores = queries @ unit(self.novel).transpose(-1, -2)
        if self.base is not None:
            scores = torch.cat([queries @ unit(self.base).transpose(-1, -2), scores], dim=-1)
        return self.scale * scores

    def weights(self) -> Tensor:
        """Unit weights of all classes ``[E, N + n, D]``, base first."""
        novel = unit(self.novel)
        if self.base is None:
            return novel
        return torch.cat([unit(self.base).expand(novel.shape[0], -1, -1), novel], dim=1)


class Adapter(ABC):
    """A method set up on given base classes, ready to adapt to any number of support sets."""

    @abstractmethod
    def adapt(self, support: Support, joint: bool = False) -> Scorer:
        """Learn the novel classes of E episodes; with ``joint`` the scorer covers base classes too."""


class Method(ABC):
    """A way to recognise novel classes from a few examples.

    Attributes:
        name: how recipes and tables call it.
        joint: whether it can score base and novel classes in one space.
        transductive: whether queries of an episode inform each other.
    """

    name: ClassVar[str]
    joint: ClassVar[bool] = True
    transductive: ClassVar[bool] = False

    @abstractmethod
    def on(self, base: BaseClasses) -> Adapter:
        """Set up on base classes: what they alone determine is computed here, once."""

    def describe(self) -> dict[str, Any]:
        """What a result file should say about it beside its name."""
        return {}

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """``on(base).adapt(support)``, for a single use."""
        return self.on(base).adapt(support, joint)
