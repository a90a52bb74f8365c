"""The linear classifier that a state of a model comes down to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.methods.calibration import log_odds
from wdae.nn.class_index import ClassIndex
from wdae.nn.cosine import unit
from wdae.nn.space import FeatureSpace

_BLOCK = 256  # vectors scored at once: their scores stay in the cache
_SAMPLE = 1024  # base classes that the share of all others is estimated on


class Candidates(NamedTuple):
    """The classes that come into question for each of some vectors.

    Shapes: scores and classes ``[M, K]``; rest ``[M]``: the log of the sum over all other classes, estimated.
    """

    scores: Tensor
    classes: Tensor
    rest: Tensor


@dataclass(frozen=True, eq=False)
class Head:
    """The linear classifier that a state of the model comes down to.

    Scores are ``z @ (gains · weights).T + offsets``, where z is the feature in the method's space, of unit
    length; their softmax are the probabilities.

    Shapes: base ``[N, D]``, added ``[n, D]``: weights, unit rows; gains, offsets ``[C]``; learned ``[N, D]``,
    estimates ``[n, D]``: the weights that base and added classes started from; shots, steps ``[n]`` (ε; empty
    without a denoiser). The offset of an added class includes its ``prior`` ``[n]``, how much likelier it is
    than a base class. Of very many classes, ``index`` finds base classes; ``moved`` are those whose weights
    are not the ones it knows: rows ``[u]`` and weights ``[u, D]``.

    >>> from wdae.classifier import BaseKnowledge, Model
    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> head = Model(base).head
    >>> head.scores(torch.tensor([[0.0, 3.0, 0.0, 4.0]])).round(decimals=3).tolist()
    [[0.0, 6.0]]
    """

    names: tuple[str, ...]
    n_base: int
    base: Tensor
    added: Tensor
    gains: Tensor
    offsets: Tensor
    learned: Tensor
    estimates: Tensor
    shots: Tensor
    steps: Tensor
    prior: Tensor
    space: FeatureSpace | None = None
    index: ClassIndex | None = None
    moved: tuple[Tensor, Tensor] | None = None

    @cached_property
    def weights(self) -> Tensor:
        """Weights of all classes ``[C, D]``, unit rows."""
        weights = torch.cat([self.base, self.added]) if len(self.added) or self.moved else self.base
        if self.moved is not None:
            weights[self.moved[0]] = self.moved[1]
        return weights

    @cached_property
    def initial(self) -> Tensor:
        """Weights before refinement ``[C, D]``: what the class graph is built on."""
        return torch.cat([self.learned, self.estimates])

    @cached_property
    def matrix(self) -> Tensor:
        """Weights with their gains, ``[C, D]``."""
        return self.weights * self.gains.unsqueeze(1)

    @torch.no_grad()
    def blocks(self, features: Tensor) -> Iterator[Tensor]:
        """Calibrated scores ``[m, C]`` of features ``[M, D]``, a few hundred at a time.

        The features need not be normalised.
        """
        for some in features.split(_BLOCK):
            yield self.linear(self._vectors(some))

    def linear(self, vectors: Tensor) -> Tensor:
        """Calibrated scores ``[M, C]`` of unit vectors ``[M, D]`` of the method's space."""
        return torch.addmm(self.offsets, vectors, self.matrix.T)

    def scores(self, features: Tensor) -> Tensor:
        """Calibrated scores ``[M, C]`` of features ``[M, D]``."""
        return torch.cat(list(self.blocks(features)))

    def familiarity(self, scores: Tensor, classes: Tensor | None = None) -> Tensor:
        """How much each item resembles any class ``[M]``: its best score, likelier classes not favoured.

        ``classes`` ``[M, K]``: whose scores they are, where they are those of candidates.
        """
        if classes is not None:
            prior = torch.cat([self.prior.new_zeros(1), self.prior])
            return (scores - prior[(classes - self.n_base + 1).clamp(min=0)]).amax(1)
        best = scores.new_full(scores.shape[:1], -torch.inf)
        if self.n_base:
            best = scores[:, : self.n_base].amax(1)
        if self.n_base < scores.shape[1]:
            best = torch.maximum(best, (scores[:, self.n_base :] - self.prior).amax(1))
        return best

    def best(self, features: Tensor) -> Tensor:
        """The class of the highest score of each of the features, ``[M]``."""
        return torch.cat([self.likeliest(self._vectors(some)) for some in features.split(_BLOCK)])

    def likeliest(self, vectors: Tensor) -> Tensor:
        """The class of the highest score of each of some unit vectors of the method's space, ``[M]``."""
        if self.index is None:
            return self.linear(vectors).argmax(1)
        found = self._candidates(vectors, 1)
        return found.classes.gather(1, found.scores.argmax(1, keepdim=True))[:, 0]

    @torch.no_grad()
    def candidates(self, features: Tensor, most: int) -> Candidates:
        """Scores of the ``most`` likeliest base classes that the index finds, and of all added classes."""
        pieces = [self._candidates(self._vectors(some), most) for some in features.split(_BLOCK)]
        return Candidates(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))

    def _candidates(self, vectors: Tensor, most: int) -> Candidates:
        assert self.index is not None
        near, cosines = self.index.nearest(vectors, most)
        scores = cosines * self.gains[near] + self.offsets[near]
        own = torch.arange(self.n_base, len(self.gains))
        weights = self.added
        if self.moved is not None:
            rows, changed = self.moved
            scores = scores.masked_fill(torch.isin(near, rows), -torch.inf)
            own, weights = torch.cat([rows, own]), torch.cat([changed, weights])
        exact = torch.addmm(self.offsets[own], vectors, (weights * self.gains[own].unsqueeze(1)).T)
        seen = (near.unsqueeze(2) == self._some).any(1)  # [M, S]
        others = (vectors @ self.base[self._some].T * self.gains[0]).masked_fill(seen, -torch.inf)
        share = (self.n_base - near.shape[1]) / (~seen).sum(1).clamp(min=1)
        return Candidates(
            torch.cat([scores, exact], 1),
            torch.cat([near, own.expand(len(near), -1)], 1),
            others.logsumexp(1) + share.clamp(min=1e-9).log(),
        )

    @cached_property
    def _some(self) -> Tensor:
        """Base classes that stand for those that are no candidates."""
        return torch.arange(0, self.n_base, max(1, self.n_base // _SAMPLE))

    def _vectors(self, features: Tensor) -> Tensor:
        return unit(features) if self.space is None else self.space.features(features)

    def expecting(self, share: float) -> Head:
        """The same classes where another share of the pictures is expected to be of added ones."""
        check_share(share)
        prior = log_odds(torch.full(self.shots.shape, share, dtype=torch.float64), self.n_base)
        return self.with_prior(prior)

    def among(self, names: Iterable[str]) -> Head:
        """Some of the classes alone, each as likely as another; they keep their order."""
        wanted = set(names)
        rows = torch.tensor([i for i, name in enumerate(self.names) if name in wanted], dtype=torch.int64)
        base, added = rows[rows < self.n_base], rows[rows >= self.n_base] - self.n_base
        equal = self.with_prior(torch.zeros_like(self.prior))
        return replace(
            equal,
            names=tuple(self.names[i] for i in rows.tolist()),
            n_base=len(base),
            base=self.weights[base],
            added=self.added[added],
            gains=self.gains[rows],
            offsets=equal.offsets[rows],
            learned=self.learned[base],
            estimates=self.estimates[added],
            shots=self.shots[added],
            steps=self.steps[added] if len(self.steps) else self.steps,
            prior=equal.prior[added],
            index=None,
            moved=None,
        )

    def with_prior(self, prior: Tensor) -> Head:
        """The same classes, added ones so much likelier ``[n]`` than a base class (a log)."""
        offsets = self.offsets.clone()
        offsets[self.n_base :] += prior - self.prior
        return replace(self, offsets=offsets, prior=prior)


def check_share(share: float) -> None:
    """Refuse what is no share of pictures."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise ModelError(
            f"the share of pictures expected to be of added classes lies between 0 and 1, got {share!r}"
        )
