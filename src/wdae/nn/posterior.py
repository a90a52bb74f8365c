"""Weights of novel classes fitted further to several shots, the refined weights as a prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST = 10
"""Shots from which on a class is fitted further, unless told otherwise."""
SHARE = 0.1
"""What the base images of a class count, all together, beside the shots of a novel class."""
STRENGTH = 0.3
"""λ, chosen on validation classes."""
TOGETHER = 64
"""Classes that are fitted further at once, the others standing still."""
_STEPS = 30
_NEVER = 1e9  # minus the score of a class that there is none of
_POWER_STEPS = 6
_NEWTON_STEPS, _INNER_STEPS, _HALVINGS = 4, 10, 6
_LOOKED_AT = 1100  # base images at most, where more classes are fitted further than at once
_FEW = 9  # shots up to which weights stay near their prior: as many steps as these are enough
_FEW_NEWTON_STEPS, _FEW_INNER_STEPS = 1, 4
_FEW_LOOKED_AT = 2200  # base images at most beside few shots, or more beside few base classes:
_SCORED = 640_000  # as many of them times base classes
_FEWER, _FEW_STRIDE = 4, 2  # files of before: one of so many base images, beside many classes and few shots
_STEADY = 20  # shots up to which λ is the same; from there on it falls as their cube root rises
MANY = 10
"""Shots from which on a class is fitted beside base weights of the same regression, where there are any."""
_EASIER = 2 / 3  # what λ is multiplied with there, whatever the number of shots
_LONGER_NEWTON_STEPS = 6  # there, where the start is not the prior mean
_LEARNING = (8, 20)  # steps of Newton's method for base weights, and products of each
_MOST = 2.0  # what a base image counts at most beside more shots than these
_BLOCK = 256  # base images that are scored beside all base classes at once


@dataclass(frozen=True, eq=False)
class Posterior:
    """The likeliest weights after the shots: logistic regression with the refined weights as its prior mean.

    Minimises ``Σ −log p(class | shot) + λ/2 ‖v − v₀‖²`` over the weights v of novel classes, their lengths
    included, where v₀ are the refined weights and p is the softmax over base and novel classes. Some base
    images count too: they are of no novel class. With few shots v stays at v₀, with many it goes where
    logistic regression does: the prior's share falls by itself. Base weights stay. Scores may have intercepts
    of their own, 0 before: of classes that are equally far from base images in their weights, one may take
    more of them than another.

    Shapes: anchors (base images, unit rows of the method's space) ``[A, D]``.

    Args:
        n_base: how many base classes they are of; beside others nothing is fitted further.
        strength: λ.
        share: what the base images of a class count, all together, beside the shots of a novel class: those
            of all that are fitted, on average.
        intercepts: whether each class gets an intercept, with the same λ.
        fewest: shots from which on a class is fitted further.
        as_counted: whether scores start for images that are as frequent as they count here: a novel class as
            often as it has shots, a base class ``share`` times the mean of these. Files of before have it
            False: scores started as if half of all images were novel, and the intercepts that took this back
            kept novel classes too low afterwards.
        eased: whether, beside intercepts and with more than twenty shots, λ is less, and a base image counts
            no more than two shots, or than beside twenty; files of before have it False, and look at fewer
            base images.
        regressed: weights and intercepts of base classes ``[N, D + 1]`` by the same regression
            (:func:`regression`). From ten shots on they take the place of those given, which are all of one
            length: both kinds of classes then have lengths and intercepts of their own. There λ is less, and
            the prior mean of a class gets shorter as its shots get more, as 10 to their number: v goes where
            a regression does that starts from nothing, as base weights did. None: no others than those
            given, as in files of before.
    """

    anchors: Tensor
    n_base: int
    strength: float = STRENGTH
    share: float = SHARE
    intercepts: bool = False
    fewest: int = FEWEST
    as_counted: bool = True
    eased: bool = True
    regressed: Tensor | None = None

    @torch.no_grad()
    def fit(
        self,
        start: Tensor,
        offsets: Tensor,
        base: Tensor,
        rows: Tensor,
        shots: Tensor,
        mask: Tensor | None = None,
        mass: Tensor | None = None,
        own_mass: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Weights ``[E, n, D]`` and intercepts ``[E, n]``: scores are ``z · v + offset + intercept``.

        Args:
            start: v₀ ``[E, n, D]``, as long as their scores want it.
            offsets: of novel scores ``[E, n]``.
            base: weights of the base classes ``[N, D]``, as long as their scores want it, or those that are
                regressed, with their intercepts.
            rows: the classes to fit further ``[m]``; the others stand still.
            shots: their features ``[E, m, K, D]``, unit rows.
            mask: ``[E, m, K]``, False past a class's own shots.
            mass: that of these base classes (:meth:`mass`), where it is known already.
            own_mass: the same of the shots ``[E, m, K]`` (:func:`mass_of`).
        """
        stride = self.stride(len(rows), shots.shape[2])
        mass = self.mass(base, stride) if mass is None else mass
        own_mass = mass_of(shots, base) if own_mass is None else own_mass
        anchors = self._anchors(stride, start.device)
        if self.intercepts:  # weights of a component that is 1 in every image
            start = F.pad(start, (0, 1))
            shots, anchors = F.pad(shots, (0, 1), value=1.0), F.pad(anchors, (0, 1), value=1.0)
        begun, shift = _exact(start), offsets.double()
        found, blocks = start.double().clone(), rows.split(TOGETHER)
        kept = torch.ones(shots.shape[:3], dtype=torch.float64, device=shots.device)
        kept = kept if mask is None else kept * mask
        few = shots.shape[2] <= _FEW
        anew = base.shape[1] > self.anchors.shape[1]
        steps = (_LONGER_NEWTON_STEPS if anew else _NEWTON_STEPS, _INNER_STEPS)
        steps = (_FEW_NEWTON_STEPS, _FEW_INNER_STEPS) if few else steps
        n_shots = kept.sum(2)
        each = self.shares(n_shots) * n_shots.sum(1) / len(rows) * self.n_base / len(anchors)
        strength = self._strengths(n_shots, anew)
        shorter = MANY / n_shots.unsqueeze(2).clamp(min=MANY) if anew else torch.ones_like(strength)
        beside = _Beside.of(anchors, begun, shift, blocks)
        parts = (shots, kept, own_mass, strength, shorter)
        by_block = zip(*(of.split(TOGETHER, 1) for of in parts), strict=True)
        for number, (block, some) in enumerate(zip(blocks, by_block, strict=True)):
            own, counted, massed, stiff, short = some
            x, weight = _exact(own.flatten(1, 2)), counted.flatten(1)  # [E, M, D], [E, M]
            label = torch.arange(len(block), device=start.device).repeat_interleave(own.shape[2])
            scores, others = _scores(x, begun, shift, block)
            more, more_others = beside.of_block(number)
            all_weights = torch.cat([weight, each.unsqueeze(1).expand(-1, len(anchors))], 1)
            all_masses = torch.cat([massed.flatten(1).logaddexp(others), mass.logaddexp(more_others)], 1)
            problem = _Problem(
                x,
                anchors,
                torch.cat([F.one_hot(label, len(block)), label.new_zeros(len(anchors), len(block))]).double(),
                all_weights,
                all_masses,
                shift[:, block].unsqueeze(1),
            )
            begin = found[:, block]
            if self.intercepts:
                scores = torch.cat([scores, more], 1)
                found[:, block] = problem.newton(begin, scores, short * begin, stiff, *steps)
            else:
                found[:, block] = problem.solve(begin, self.strength)
        found = found.to(start.dtype)
        if self.intercepts:
            return found[..., :-1], found[..., -1]
        return found, torch.zeros_like(offsets)

    def shares(self, shots: Tensor) -> Tensor:
        """What the base images of a class count, beside classes of so many shots ``[E, m]``: ``[E]``."""
        share = torch.full((len(shots),), self.share, dtype=torch.float64, device=shots.device)
        if not (self.eased and self.intercepts):
            return share
        most = max(self.share * _STEADY, _MOST * len(self.anchors) / self.n_base)
        return share.minimum(most / shots.double().mean(1).clamp(min=1))

    def _strengths(self, shots: Tensor, anew: bool) -> Tensor:
        """λ of each class ``[E, m, 1]``, beside regressed weights or others."""
        fewer = (_STEADY / shots.clamp(min=_STEADY)) ** (1 / 3) if self.eased else torch.ones_like(shots)
        if anew:
            fewer = torch.where(shots >= MANY, _EASIER, torch.ones_like(shots))
        return self.strength * fewer.unsqueeze(2)

    def beside_regressed(self, start: Tensor, base: Tensor) -> Tensor:
        """Weights ``[E, n, D]`` to compare with regressed ones, from those compared with base weights.

        They lose what base weights have in common, and those of a regression have not, and become as much
        longer or shorter as these are.

        Args:
            start: v₀ ``[E, n, D]``, as long as their scores want it.
            base: weights of the base classes ``[N, D]``, likewise.
        """
        assert self.regressed is not None
        regressed = self.regressed[:, :-1].to(base)
        length, wanted = (torch.linalg.vector_norm(some, dim=1).mean() for some in (base, regressed))
        longer = torch.linalg.vector_norm(start, dim=2, keepdim=True) / length.clamp(min=1e-12)
        moved: Tensor = wanted / length.clamp(min=1e-12) * (start - longer * base.mean(0))
        return moved.add(longer * regressed.mean(0))

    def stride(self, n_classes: int, n_shots: int) -> int:
        """One of so many base images is looked at where so many classes of so many shots are fitted."""
        if not self.intercepts or (n_classes <= TOGETHER and n_shots > _FEW):
            return 1
        if not self.eased:
            return _FEWER if n_classes > TOGETHER else _FEW_STRIDE
        few_looked_at = max(_FEW_LOOKED_AT, _SCORED // max(1, self.n_base))
        return -(-len(self.anchors) // (_LOOKED_AT if n_classes > TOGETHER else few_looked_at))

    @torch.no_grad()
    def mass(self, base: Tensor, stride: int = 1) -> Tensor:
        """Log of the sum of exponentials of base scores, for the base images that are looked at ``[A]``.

        Args:
            base: weights of the base classes ``[N, D]``, as long as their scores want it.
        """
        anchors = self._anchors(stride, base.device)
        return torch.cat([mass_of(some, base) for some in anchors.split(_BLOCK)])

    def _anchors(self, stride: int, device: torch.device) -> Tensor:
        return _exact(self.anchors[::stride].to(device))


@dataclass(frozen=True, eq=False)
class _Beside:
    """Scores of the base images as all novel classes stand before, computed once for all blocks of classes.

    Shapes: scores (but for offsets) ``[E, A, n]``, offsets ``[E, n]``, masses of each block and, where it is
    not empty, of the classes in none ``[E, A, B]``.
    """

    scores: Tensor
    offsets: Tensor
    blocks: Sequence[Tensor]
    masses: Tensor

    @classmethod
    def of(cls, anchors: Tensor, start: Tensor, offsets: Tensor, blocks: Sequence[Tensor]) -> _Beside:
        scores = _products(anchors, start)
        rest = torch.ones(start.shape[1], dtype=torch.bool, device=start.device)
        rest[torch.cat(list(blocks))] = False
        groups = [*blocks, rest.nonzero()[:, 0]]
        if len(groups[-1]) + len(blocks) == 1:
            groups = groups[:1]  # all classes are one block: nothing is beside it
        masses = scores.new_full((*scores.shape[:2], len(groups)), -torch.inf, dtype=torch.float64)
        for number, group in enumerate(groups if len(groups) > 1 else ()):
            masses[..., number] = _plus(scores[..., group], offsets[:, group]).logsumexp(2)
        return cls(scores, offsets, blocks, masses)

    def of_block(self, number: int) -> tuple[Tensor, Tensor]:
        """Scores of a block ``[E, A, m]``, and the mass of all other novel classes ``[E, A]``."""
        block = self.blocks[number]
        others = torch.cat([self.masses[..., :number], self.masses[..., number + 1 :]], 2)
        return _plus(self.scores[..., block], self.offsets[:, block]), others.logsumexp(2)


def _exact(rows: Tensor) -> Tensor:
    """In double precision on a GPU, where single may be less (TF32), as other code of the process has set."""
    return rows.double() if rows.is_cuda else rows


def mass_of(rows: Tensor, base: Tensor) -> Tensor:
    """Log of the sum of exponentials of base scores: ``[..., D]`` with ``[N, D]`` → ``[...]``.

    Base weights ``[N, D + 1]`` have intercepts.
    """
    if base.shape[1] > rows.shape[-1]:
        rows = F.pad(rows, (0, 1), value=1.0)
    return (rows.to(_exact(base).dtype) @ _exact(base).T).double().logsumexp(-1)


def _scores(rows: Tensor, weights: Tensor, offsets: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of rows ``[E, M, D]`` for a block of classes ``[E, M, m]``, and the mass of the others."""
    products = rows @ weights.transpose(1, 2)
    own = _plus(products[..., block], offsets[:, block])
    if len(block) == weights.shape[1]:
        return own, own.new_full(own.shape[:2], -torch.inf)
    others = products.add_(offsets.to(rows.dtype).unsqueeze(1))
    others[..., block] = -torch.inf
    return own, others.logsumexp(2).double()


def _plus(products: Tensor, offsets: Tensor) -> Tensor:
    """Scores ``[E, M, c]`` in double precision, with offsets ``[E, c]``."""
    return products.double() + offsets.unsqueeze(1)


def _products(shared: Tensor, weights: Tensor) -> Tensor:
    """Products of examples ``[A, D]`` with the weights of several episodes ``[E, c, D]``: ``[E, A, c]``."""
    found: Tensor = shared @ weights.flatten(0, 1).T.to(shared.dtype)
    return found.view(len(shared), *weights.shape[:2]).transpose(0, 1)


@torch.no_grad()
def likeliest(features: Tensor, labels: Tensor, start: Tensor, strength: float = STRENGTH) -> Tensor:
    """Logistic regression with given weights as its prior mean, all classes learned from their images.

    Shapes: features ``[M, D]``, unit rows; labels ``[M]``; start (as long as scores want it) ``[N, D]`` →
    ``[N, D]``.
    """
    rows, n = features.double().unsqueeze(0), len(start)
    ones = rows.new_ones(rows.shape[:2])
    targets = F.one_hot(labels, n).double()
    problem = _Problem(rows, rows[0, :0], targets, ones, -_NEVER * ones, rows.new_zeros(1, 1, n))
    return problem.solve(start.double().unsqueeze(0), strength)[0].to(start.dtype)


@torch.no_grad()
def regression(features: Tensor, labels: Tensor, n_classes: int, strength: float = STRENGTH) -> Tensor:
    """Weights and intercepts ``[N, D + 1]`` by logistic regression, with zero as the prior mean of both.

    Shapes: features ``[M, D]``, unit rows; labels ``[M]``.
    """
    rows = _exact(F.pad(features, (0, 1), value=1.0)).unsqueeze(0)
    ones = torch.ones(rows.shape[:2], dtype=torch.float64, device=rows.device)
    targets = F.one_hot(labels, n_classes).double()
    start = torch.zeros(1, n_classes, rows.shape[2], dtype=torch.float64, device=rows.device)
    problem = _Problem(rows, rows[0, :0], targets, ones, -_NEVER * ones, start.new_zeros(1, 1, n_classes))
    stiff = start.new_full((1, n_classes, 1), strength)
    scores = start.new_zeros(1, len(labels), n_classes)
    found = problem.newton(start, scores, start, stiff, *_LEARNING)
    return found[0].to(features.dtype)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Examples: an episode's own ``[E, S, D]`` and those of all episodes ``[A, D]``, together M = S + A.

    They may be of single precision, and so are their products then.
    One-hot targets ``[M, m]``; weights and masses of other classes ``[E, M]``, in double precision.
    """

    own: Tensor
    shared: Tensor
    targets: Tensor
    weight: Tensor
    mass: Tensor
    offsets: Tensor  # [E, 1, m]

    def solve(self, start: Tensor, strength: float) -> Tensor:
        """Nesterov's accelerated gradient from the prior mean; a few steps, by a bound on the curvature."""
        steepest = strength + 0.5 * self._curvature()
        at, ahead, pace = start, start, 1.0
        for _ in range(_STEPS):
            after = ahead - (self._gradient(ahead) + strength * (ahead - start)) / steepest
            next_pace = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
            ahead = after + (pace - 1) / next_pace * (after - at)
            at, pace = after, next_pace
        return at

    def newton(
        self, start: Tensor, scores: Tensor, prior: Tensor, strength: Tensor, n_steps: int, n_inner: int
    ) -> Tensor:
        """Newton's steps by conjugate gradients, halved where they go too far.

        Where many base images count, of which few are near, the curvature is far below its bound. Products
        with examples are what takes time: scores ``[E, M, m]``, those of the start, follow the weights. λ is
        ``[E, m, 1]``; the prior mean may be another than the start.
        """
        at, value = start, self._loss(scores) + self._far(start - prior, strength)
        for _ in range(n_steps):
            chances = (scores - self._total(scores)).exp()
            slope = self._slope(chances) + strength * (at - prior)
            step, along = self._newton_step(chances, slope, strength, n_inner)
            size = torch.ones_like(value)
            for _ in range(_HALVINGS):
                new, new_scores = at - size * step, scores - size * along
                new_value = self._loss(new_scores) + self._far(new - prior, strength)
                worse = new_value > value + 1e-9
                if not bool(worse.any()):
                    break
                size = torch.where(worse, size / 2, size)
            at, scores = torch.where(worse, at, new), torch.where(worse, scores, new_scores)
            value = torch.where(worse, value, new_value)
        return at

    @staticmethod
    def _far(apart: Tensor, strength: Tensor) -> Tensor:
        """What the prior takes off for a distance from its mean ``[E, 1, 1]``."""
        return (strength / 2 * apart.square()).sum((1, 2), keepdim=True)

    def _newton_step(
        self, chances: Tensor, slope: Tensor, strength: Tensor, n_inner: int
    ) -> tuple[Tensor, Tensor]:
        """``H⁻¹ slope`` by conjugate gradients, each episode by itself, and its products with the examples.

        As precise as the examples: a step need not be more.
        """
        chances, weight = chances.to(self.own.dtype), self.weight.to(self.own.dtype).unsqueeze(2)
        step, residual, direction = torch.zeros_like(slope), slope, slope
        step_along, weighted = torch.zeros_like(chances), chances * weight
        square = residual.square().sum((1, 2), keepdim=True)
        for inner in range(n_inner):
            along = self._times(direction)
            bent = weighted * (along - (chances * along).sum(2, keepdim=True))
            curvature = (along * bent).sum((1, 2), keepdim=True)
            curvature = curvature + (strength * direction.square()).sum((1, 2), keepdim=True)
            ahead = square / curvature.clamp(min=1e-300)
            step, step_along = step + ahead * direction, step_along + ahead.to(along.dtype) * along
            if inner == n_inner - 1:
                break
            residual = residual - ahead * (self._sum(bent) + strength * direction)
            before, square = square, residual.square().sum((1, 2), keepdim=True)
            direction = residual + square / before.clamp(min=1e-300) * direction
        return step, step_along

    def _total(self, scores: Tensor) -> Tensor:
        """The log of the sum over all classes ``[E, M, 1]``, from scores of those to fit."""
        return torch.logaddexp(self.mass.unsqueeze(2), scores.logsumexp(2, keepdim=True))

    def _loss(self, scores: Tensor) -> Tensor:
        """But for a constant ``[E, 1, 1]``."""
        own = (scores * self.targets).sum(2, keepdim=True)
        own = torch.where(self.targets.any(1, keepdim=True), own, self.mass.unsqueeze(2))
        return ((self._total(scores) - own) * self.weight.unsqueeze(2)).sum(1, keepdim=True)

    def _slope(self, chances: Tensor) -> Tensor:
        return self._sum((chances - self.targets) * self.weight.unsqueeze(2))

    def _gradient(self, weights: Tensor) -> Tensor:
        scores = self._times(weights) + self.offsets
        return self._slope((scores - self._total(scores)).exp())

    def _curvature(self) -> Tensor:
        """The largest eigenvalue of the weighted second moments of the examples ``[E, 1, 1]``."""
        weight = self.weight.unsqueeze(2)
        along = self._sum(weight)  # [E, 1, D]
        size = along.new_ones(len(along), 1, 1)
        for _ in range(_POWER_STEPS):
            along = along / torch.linalg.vector_norm(along, dim=2, keepdim=True).clamp(min=1e-12)
            along = self._sum(self._times(along) * weight)
            size = torch.linalg.vector_norm(along, dim=2, keepdim=True)
        return 1.1 * size

    def _times(self, weights: Tensor) -> Tensor:
        """Products of all examples with weights ``[E, c, D]``: ``[E, M, c]``, as precise as the examples."""
        own = self.own @ weights.transpose(1, 2).to(self.own.dtype)
        return torch.cat([own, _products(self.shared, weights).to(own.dtype)], 1)

    def _sum(self, amounts: Tensor) -> Tensor:
        """Sums of all examples, each as often as ``[E, M, c]`` says: ``[E, c, D]``."""
        amounts, n_own = amounts.transpose(1, 2), self.own.shape[1]
        of_shared = amounts[..., n_own:].flatten(0, 1).to(self.shared.dtype) @ self.shared
        of_own = amounts[..., :n_own].to(self.own.dtype) @ self.own
        return of_own.double() + of_shared.view(of_own.shape).double()
