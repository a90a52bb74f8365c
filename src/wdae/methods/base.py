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

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet, FeatureBank, class_means
from wdae.episodes import Episodes, take_rows
from wdae.errors import ModelError
from wdae.nn.cosine import unit, vector_length
from wdae.parts import Part

Scorer = Callable[[Tensor], Tensor]
"""Queries ``[E, Q, D]`` to scores: ``[E, Q, n]``, or ``[E, Q, N + n]`` (base first) where joint."""


@dataclass(frozen=True)
class BaseClasses:
    """What is known of the base classes: weights ``[N, D]`` and the scale γ of the cosine classifier.

    In training the classes that play base differ between episodes: weights are then ``[E, N, D]`` and
    ``classes`` ``[E, N]`` says which of all base classes they are.

    >>> base = BaseClasses(torch.eye(4, 8), scale=10.0)  # four base classes, features of size 8
    >>> base.weights.shape
    torch.Size([4, 8])
    """

    weights: Tensor
    scale: float = 10.0
    classes: Tensor | None = None

    def to(self, device: torch.device | str) -> BaseClasses:
        """The same on another device."""
        classes = None if self.classes is None else self.classes.to(device)
        return BaseClasses(self.weights.to(device), self.scale, classes)


def base_classes(bank: FeatureBank, device: torch.device | str = "cpu") -> BaseClasses:
    """The base classes of a bank: learned weights, or class means where it has none."""
    weights = class_means(bank) if bank.base_weights is None else bank.base_weights
    return BaseClasses(weights.float().to(device), bank.cosine_scale or 10.0)


@dataclass(frozen=True)
class Support:
    """The shots of the novel classes of E episodes.

    Shapes: features ``[E, n, K, D]``; mask ``[E, n, K]``, False past a class's own shots, or None where all
    classes have K. Features, those of queries too, are rows of unit length, as a bank gives them: some
    methods do not look at lengths, others do.

    >>> Support(torch.ones(2, 5, 3, 8)).shots.shape  # 2 episodes, 5 classes, 3 shots
    torch.Size([2, 5])
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


def gather_support(pool: ClassSet, episodes: Episodes) -> Support:
    """The features of the shots ``[E, n, K, D]`` (and a mask where their numbers differ)."""
    mask = None if bool(episodes.support_mask.all()) else episodes.support_mask
    return Support(take_rows(pool.features, episodes.support), mask)


@dataclass(frozen=True)
class WeightScorer:
    """Scores by scaled cosine with class weights.

    Shapes: novel ``[E, n, D]``, base ``[N, D]`` or ``[E, N, D]`` (None: novel classes only).

    >>> scorer = WeightScorer(torch.eye(8)[None, 4:6], torch.eye(4, 8), scale=10.0)
    >>> scorer(torch.eye(8)[None]).shape, scorer.weights().shape
    (torch.Size([1, 8, 6]), torch.Size([1, 6, 8]))
    """

    novel: Tensor
    base: Tensor | None
    scale: float | Tensor

    def __call__(self, queries: Tensor) -> Tensor:
        """Scores of queries ``[E, Q, D]``: products first, then lengths, which spares copies of all rows."""
        scores = _products(queries, self.novel)
        if self.base is not None:
            scores = torch.cat([_products(queries, self.base), scores], dim=-1)
        return scores * (self.scale / vector_length(queries).unsqueeze(-1))

    def weights(self) -> Tensor:
        """Unit weights of all classes ``[E, N + n, D]``, base first."""
        novel = unit(self.novel)
        if self.base is None:
            return novel
        return torch.cat([unit(self.base).expand(novel.shape[0], -1, -1), novel], dim=1)


def _products(queries: Tensor, weights: Tensor) -> Tensor:
    """Products with unit weights: ``[E, Q, D]`` with ``[N, D]`` or ``[E, N, D]`` → ``[E, Q, N]``."""
    return (queries @ weights.transpose(-1, -2)) / vector_length(weights).unsqueeze(-2)


class Adapter(ABC):
    """A method set up on given base classes, ready to adapt to any number of support sets.

    >>> from wdae.methods import make
    >>> adapter = make("initial-estimate").on(BaseClasses(torch.eye(4, 8)))
    >>> adapter.adapt(Support(torch.ones(1, 5, 1, 8)))(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 5])
    """

    @abstractmethod
    def adapt(self, support: Support, joint: bool = False) -> Scorer:
        """Learn the novel classes of E episodes; with ``joint`` the scorer covers base classes too."""


class WeightAdapter(Adapter):
    """An adapter that works in steps: an estimate of each novel class alone, then weights of all classes.

    Weights may then be fitted further to the shots.

    ``base`` holds the base classes with the weights they have in the method's space.
    """

    base: BaseClasses

    @abstractmethod
    def estimate(self, support: Support) -> Tensor:
        """Initial estimates ``[E, n, D]`` of the novel classes, unit rows in the method's space (eq. 5)."""

    @abstractmethod
    def weigh(self, estimates: Tensor, shots: Tensor, joint: bool = False) -> WeightScorer:
        """The scorer that estimates ``[E, n, D]`` from so many shots ``[E, n]`` lead to."""

    def adapt(self, support: Support, joint: bool = False) -> WeightScorer:
        """Learn the novel classes of E episodes; with ``joint`` the scorer covers base classes too."""
        shots = support.shots
        return self.fit(self.weigh(self.estimate(support), shots, joint), shots, support)

    def fit(
        self, scorer: WeightScorer, shots: Tensor, support: Support, rows: Tensor | None = None
    ) -> WeightScorer:
        """The scorer fitted further to the shots ``[E, n]`` of all novel classes, or of those in ``rows``."""
        return scorer


class Method(ABC):
    """A way to recognise novel classes from a few examples.

    A method implements :meth:`adapt`. One that needs statistics of base-train images takes them in
    :meth:`prepare`; one that can compute something from the base classes alone, once for all episodes,
    overrides :meth:`on` as well.

    Attributes:
        name: how recipes and tables call it.
        about, paper: one line on what it does, and where it comes from.
        joint: whether it can score base and novel classes in one space.
        transductive: whether queries of an episode inform each other.
        ordered: whether the order of the support examples matters.
        training_defaults: recipe keys in which its meta-training differs from the defaults (learned methods).
        training_length: how many times as many steps it needs as methods that start next to nearest mean.

    >>> class FirstShot(Method):
    ...     name = "first-shot"
    ...     def adapt(self, support, base, joint=False):
    ...         return WeightScorer(support.features[:, :, 0], base.weights if joint else None, base.scale)
    >>> scorer = FirstShot().adapt(Support(torch.ones(1, 5, 2, 8)), BaseClasses(torch.eye(4, 8)), joint=True)
    >>> scorer(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 9])
    """

    name: str
    about: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    joint: ClassVar[bool] = True
    transductive: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    training_length: ClassVar[int] = 1

    @abstractmethod
    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Learn the novel classes of E episodes; with ``joint`` the scorer covers base classes too."""

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:  # noqa: B027
        """Take statistics of the base-train images ``pool``; most methods need none.

        A method with parameters is prepared once, before it is trained; others on each bank they are used on.
        """

    def on(self, base: BaseClasses) -> Adapter:
        """Set up on base classes: what they alone determine is computed here, once."""
        return _Bound(self, base)

    def describe(self) -> dict[str, Any]:
        """What a result file should say about it beside its name."""
        return {"transductive": True} if self.transductive else {}

    def n_parameters(self) -> int:
        """How many numbers are learned."""
        return 0

    def refuse_joint(self, joint: bool) -> None:
        """Say that base classes cannot be scored, where they are asked for and cannot."""
        if joint and not self.joint:
            raise ModelError(
                f"{self.name} scores novel classes only, so it has no base or all accuracy; "
                "ask for novel accuracy, or choose a method that `wdae methods` marks as joint"
            )


def prepared(method: Method, bank: FeatureBank, device: torch.device | str = "cpu") -> Method:
    """A method with the statistics that it takes of a bank's base-train images, if any."""
    if isinstance(method, nn.Module) or type(method).prepare is Method.prepare:
        return method
    method = copy.copy(method)
    pool = bank.select(Part.BASE_TRAIN, device=device)
    method.prepare(base_classes(bank, device), pool, torch.Generator().manual_seed(0))
    return method


@dataclass(frozen=True)
class _Bound(Adapter):
    """A method that computes nothing ahead."""

    method: Method
    base: BaseClasses

    def adapt(self, support: Support, joint: bool = False) -> Scorer:
        return self.method.adapt(support, self.base, joint)
