"""Weights of novel classes fitted further to several shots, the refined weights as a prior."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST = 10
"""Shots from which on a class is fitted further, unless told otherwise."""
SHARE = 0.1
"""What the base images of a class count, all together, beside the shots of a novel class."""
STRENGTH = 0.3
"""λ, chosen on validation classes."""
_STEPS = 30
_NEVER = 1e9  # minus the score of a class that there is none of
_TOGETHER = 64  # classes that are fitted further at once, the others standing still
_POWER_STEPS = 6
_NEWTON_STEPS, _INNER_STEPS, _HALVINGS = 4, 10, 6
_FEWER = 4  # one of so many base images is looked at where more classes are fitted further than at once
_FEW = 9  # shots up to which weights stay near their prior: as many steps and base images as these are enough
_FEW_NEWTON_STEPS, _FEW_INNER_STEPS, _FEW_STRIDE = 1, 4, 2
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
        share: what the base images of a class count, all together, beside the shots of a novel class.
        intercepts: whether each class gets an intercept, with the same λ.
        fewest: shots from which on a class is fitted further.
        as_counted: whether scores start for images that are as frequent as they count here: a novel class 1,
            a base class ``share``. Files of before have it False: scores started as if half of all images
            were novel, and the intercepts that took this back kept novel classes too low afterwards.
    """

    anchors: Tensor
    n_base: int
    strength: float = STRENGTH
    share: float = SHARE
    intercepts: bool = False
    fewest: int = FEWEST
    as_counted: bool = True

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
    ) -> tuple[Tensor, Tensor]:
        """Weights ``[E, n, D]`` and intercepts ``[E, n]``: scores are ``z · v + offset + intercept``.

        Args:
            start: v₀ ``[E, n, D]``, as long as their scores want it.
            offsets: of novel scores ``[E, n]``.
            base: weights of the base classes ``[N, D]``, as long as their scores want it.
            rows: the classes to fit further ``[m]``; the others stand still.
            shots: their features ``[E, m, K, D]``, unit rows.
            mask: ``[E, m, K]``, False past a class's own shots.
            mass: that of these base classes (:meth:`mass`), where it is known already.
        """
        stride = self.stride(len(rows), shots.shape[2])
        mass = self.mass(base, stride) if mass is None else mass
        own_mass, anchors = _mass(shots, _exact(base)), self._anchors(stride, start.device)
        if self.intercepts:  # weights of a component that is 1 in every image
            start = F.pad(start, (0, 1))
            shots, anchors = F.pad(shots, (0, 1), value=1.0), F.pad(anchors, (0, 1), value=1.0)
        found = start.double().clone()
        kept = torch.ones(shots.shape[:3], dtype=torch.float64, device=shots.device)
        kept = kept if mask is None else kept * mask
        shift, few = offsets.double(), shots.shape[2] <= _FEW
        steps = (_FEW_NEWTON_STEPS, _FEW_INNER_STEPS) if few else (_NEWTON_STEPS, _INNER_STEPS)
        of_shots = zip(*(of.split(_TOGETHER, 1) for of in (shots, kept, own_mass)), strict=True)
        for block, (own, counted, massed) in zip(rows.split(_TOGETHER), of_shots, strict=True):
            others = torch.ones(start.shape[1], dtype=torch.bool, device=start.device)
            others[block] = False
            fixed, fixed_shift = start.double()[:, others], shift[:, others]
            x, weight = own.flatten(1, 2).double(), counted.flatten(1)  # [E, M, D], [E, M]
            label = torch.arange(len(block), device=start.device).repeat_interleave(own.shape[2])
            problem = _Problem(
                x,
                anchors,
                torch.cat([F.one_hot(label, len(block)), label.new_zeros(len(anchors), len(block))]).double(),
                torch.cat([weight, self._anchor_weight(weight, len(block), len(anchors))], 1),
                torch.cat([massed.flatten(1), mass.expand(len(x), -1)], 1),
                shift[:, block].unsqueeze(1),
            )
            problem = problem.among(fixed, fixed_shift)
            prior = start.double()[:, block]
            if self.intercepts:
                found[:, block] = problem.newton(prior, self.strength, *steps)
            else:
                found[:, block] = problem.solve(prior, self.strength)
        found = found.to(start.dtype)
        if self.intercepts:
            return found[..., :-1], found[..., -1]
        return found, torch.zeros_like(offsets)

    def stride(self, n_classes: int, n_shots: int) -> int:
        """One of so many base images is looked at where so many classes of so many shots are fitted."""
        if not self.intercepts:
            return 1
        if n_classes > _TOGETHER:
            return _FEWER
        return _FEW_STRIDE if n_shots <= _FEW else 1

    @torch.no_grad()
    def mass(self, base: Tensor, stride: int = 1) -> Tensor:
        """Log of the sum of exponentials of base scores, for the base images that are looked at ``[A]``.

        Args:
            base: weights of the base classes ``[N, D]``, as long as their scores want it.
        """
        anchors = self._anchors(stride, base.device)
        return torch.cat([_mass(some, _exact(base)) for some in anchors.split(_BLOCK)])

    def _anchors(self, stride: int, device: torch.device) -> Tensor:
        return _exact(self.anchors[::stride].to(device))

    def _anchor_weight(self, weight: Tensor, n_classes: int, n_anchors: int) -> Tensor:
        """``[E, A]``: all images of a base class count a part of the shots of a novel one."""
        each = self.share * weight.sum(1, keepdim=True) / n_classes * self.n_base / n_anchors
        return each.expand(-1, n_anchors)


def _exact(rows: Tensor) -> Tensor:
    """In double precision on a GPU, where single may be less (TF32), as other code of the process has set."""
    return rows.double() if rows.is_cuda else rows


def _mass(rows: Tensor, base: Tensor) -> Tensor:
    """Log of the sum of exponentials of base scores: ``[..., D]`` with ``[N, D]`` → ``[...]``."""
    return (rows.to(base.dtype) @ base.T).double().logsumexp(-1)


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


@dataclass(frozen=True, eq=False)
class _Problem:
    """Examples: an episode's own ``[E, S, D]`` and those of all episodes ``[A, D]``, together M = S + A.

    The latter are many: they may be of single precision, and so are their products then.
    One-hot targets ``[M, m]``; weights and masses of other classes ``[E, M]``.
    """

    own: Tensor
    shared: Tensor
    targets: Tensor
    weight: Tensor
    mass: Tensor
    offsets: Tensor  # [E, 1, m]

    def among(self, fixed: Tensor, offsets: Tensor) -> _Problem:
        """The same beside further classes whose weights ``[E, c, D]`` stand still."""
        if not fixed.shape[1]:
            return self
        scores = self._times(fixed) + offsets.unsqueeze(1)
        return replace(self, mass=torch.logaddexp(self.mass, scores.logsumexp(2)))

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

    def newton(self, start: Tensor, strength: float, n_steps: int, n_inner: int) -> Tensor:
        """Newton's steps by conjugate gradients, halved where they go too far.

        Where many base images count, of which few are near, the curvature is far below its bound.
        """
        at, value = start, self._loss(start)
        for _ in range(n_steps):
            chances = self._chances(at)
            slope = self._slope(chances) + strength * (at - start)
            step = self._newton_step(chances, slope, strength, n_inner)
            size = torch.ones_like(value)
            for _ in range(_HALVINGS):
                new = at - size * step
                far = strength / 2 * (new - start).square().sum((1, 2), keepdim=True)
                new_value = self._loss(new) + far
                worse = new_value > value + 1e-9
                if not bool(worse.any()):
                    break
                size = torch.where(worse, size / 2, size)
            at, value = torch.where(worse, at, new), torch.where(worse, value, new_value)
        return at

    def _newton_step(self, chances: Tensor, slope: Tensor, strength: float, n_inner: int) -> Tensor:
        """``H⁻¹ slope`` by conjugate gradients, each episode by itself."""
        step, residual, direction = torch.zeros_like(slope), slope, slope
        square = residual.square().sum((1, 2), keepdim=True)
        for _ in range(n_inner):
            along = self._times(direction)
            bent = chances * (along - (chances * along).sum(2, keepdim=True)) * self.weight.unsqueeze(2)
            curved = self._sum(bent) + strength * direction
            ahead = square / (direction * curved).sum((1, 2), keepdim=True).clamp(min=1e-300)
            step, residual = step + ahead * direction, residual - ahead * curved
            before, square = square, residual.square().sum((1, 2), keepdim=True)
            direction = residual + square / before.clamp(min=1e-300) * direction
        return step

    def _scores(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the classes ``[E, M, m]``, and the log of the sum over all classes ``[E, M, 1]``."""
        scores = self._times(weights) + self.offsets
        return scores, torch.logaddexp(self.mass.unsqueeze(2), scores.logsumexp(2, keepdim=True))

    def _loss(self, weights: Tensor) -> Tensor:
        """But for a constant ``[E, 1, 1]``."""
        scores, total = self._scores(weights)
        own = (scores * self.targets).sum(2, keepdim=True)
        own = torch.where(self.targets.any(1, keepdim=True), own, self.mass.unsqueeze(2))
        return ((total - own) * self.weight.unsqueeze(2)).sum(1, keepdim=True)

    def _chances(self, weights: Tensor) -> Tensor:
        scores, total = self._scores(weights)
        return (scores - total).exp()

    def _slope(self, chances: Tensor) -> Tensor:
        return self._sum((chances - self.targets) * self.weight.unsqueeze(2))

    def _gradient(self, weights: Tensor) -> Tensor:
        return self._slope(self._chances(weights))

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
        """Products of all examples with weights ``[E, c, D]``: ``[E, M, c]``."""
        shared = self.shared @ weights.flatten(0, 1).T.to(self.shared.dtype)
        shared = shared.unflatten(1, weights.shape[:2]).transpose(0, 1)  # [E, A, c]
        return torch.cat([self.own @ weights.transpose(1, 2), shared.to(self.own.dtype)], 1)

    def _sum(self, amounts: Tensor) -> Tensor:
        """Sums of all examples, each as often as ``[E, M, c]`` says: ``[E, c, D]``."""
        amounts, n_own = amounts.transpose(1, 2), self.own.shape[1]
        of_shared = amounts[..., n_own:].flatten(0, 1).to(self.shared.dtype) @ self.shared
        of_own = amounts[..., :n_own] @ self.own
        return of_own + of_shared.view(of_own.shape).to(of_own.dtype)
