"""Weights of novel classes learned on from many shots, the refined weights as a prior."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST = 10
"""Shots from which on a class is learned on; on validation classes fewer gained nothing."""
STRENGTH = 0.3
"""λ, chosen on validation classes."""
_STEPS = 30
_NEVER = 1e9  # minus the score of a class that there is none of
_TOGETHER = 64  # classes that are learned on at once, the others standing still
_BASE_SHARE = 0.1  # what the base images of a class count, all together, beside the shots of a novel class
_POWER_STEPS = 6


@dataclass(frozen=True, eq=False)
class Posterior:
    """The likeliest weights after the shots: logistic regression with the refined weights as its prior mean.

    Minimises ``Σ −log p(class | shot) + λ/2 ‖v − v₀‖²`` over the weights v of novel classes, their lengths
    included, where v₀ are the refined weights and p is the softmax over base and novel classes. Some base
    images count too: they are of no novel class. With few shots v stays at v₀, with many it goes where
    logistic regression does: the prior's share falls by itself. Base weights stay.

    Shapes: anchors (base images, unit rows of the method's space) ``[A, D]``.

    Args:
        n_base: how many base classes they are of; beside others nothing is learned on.
        strength: λ.
    """

    anchors: Tensor
    n_base: int
    strength: float = STRENGTH

    @torch.no_grad()
    def weights(
        self,
        start: Tensor,
        offsets: Tensor,
        base: Tensor,
        rows: Tensor,
        shots: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The weights ``[E, n, D]`` that scores ``z · v + offset`` are computed with.

        Args:
            start: v₀ ``[E, n, D]``, as long as their scores want it.
            offsets: of novel scores ``[E, n]``.
            base: weights of the base classes ``[N, D]``, as long as their scores want it.
            rows: the classes to learn on ``[m]``; the others stand still.
            shots: their features ``[E, m, K, D]``, unit rows.
            mask: ``[E, m, K]``, False past a class's own shots.
        """
        found = start.double().clone()
        kept = torch.ones(shots.shape[:3], dtype=torch.float64, device=shots.device)
        kept = kept if mask is None else kept * mask
        anchors, known, shift = (part.double() for part in (self.anchors.to(start.device), base, offsets))
        mass = (anchors @ known.T).logsumexp(1)
        for block, own, counted in zip(
            rows.split(_TOGETHER), shots.split(_TOGETHER, 1), kept.split(_TOGETHER, 1), strict=True
        ):
            others = torch.ones(start.shape[1], dtype=torch.bool, device=start.device)
            others[block] = False
            fixed, fixed_shift = start.double()[:, others], shift[:, others]
            x, weight = own.flatten(1, 2).double(), counted.flatten(1)  # [E, M, D], [E, M]
            label = torch.arange(len(block), device=start.device).repeat_interleave(own.shape[2])
            problem = _Problem(
                torch.cat([x, anchors.expand(len(x), -1, -1)], 1),
                torch.cat([F.one_hot(label, len(block)), label.new_zeros(len(anchors), len(block))]).double(),
                torch.cat([weight, self._anchor_weight(weight, len(block))], 1),
                torch.cat([(x @ known.T).logsumexp(2), mass.expand(len(x), -1)], 1),
                shift[:, block].unsqueeze(1),
            )
            found[:, block] = problem.among(fixed, fixed_shift).solve(start.double()[:, block], self.strength)
        return found.to(start.dtype)

    def _anchor_weight(self, weight: Tensor, n_classes: int) -> Tensor:
        """``[E, A]``: all images of a base class count a part of the shots of a novel one."""
        each = _BASE_SHARE * weight.sum(1, keepdim=True) / n_classes * self.n_base / len(self.anchors)
        return each.expand(-1, len(self.anchors))


@torch.no_grad()
def likeliest(features: Tensor, labels: Tensor, start: Tensor, strength: float = STRENGTH) -> Tensor:
    """Logistic regression with given weights as its prior mean, all classes learned from their images.

    Shapes: features ``[M, D]``, unit rows; labels ``[M]``; start (as long as scores want it) ``[N, D]`` →
    ``[N, D]``.
    """
    rows, n = features.double().unsqueeze(0), len(start)
    ones = rows.new_ones(rows.shape[:2])
    problem = _Problem(rows, F.one_hot(labels, n).double(), ones, -_NEVER * ones, rows.new_zeros(1, 1, n))
    return problem.solve(start.double().unsqueeze(0), strength)[0].to(start.dtype)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Examples ``[E, M, D]``, one-hot targets ``[M, m]``, weights and masses of other classes ``[E, M]``."""

    examples: Tensor
    targets: Tensor
    weight: Tensor
    mass: Tensor
    offsets: Tensor  # [E, 1, m]

    def among(self, fixed: Tensor, offsets: Tensor) -> _Problem:
        """The same beside further classes whose weights ``[E, c, D]`` stand still."""
        if not fixed.shape[1]:
            return self
        scores = self.examples @ fixed.transpose(1, 2) + offsets.unsqueeze(1)
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

    def _gradient(self, weights: Tensor) -> Tensor:
        scores = self.examples @ weights.transpose(1, 2) + self.offsets  # [E, M, m]
        total = torch.logaddexp(self.mass.unsqueeze(2), scores.logsumexp(2, keepdim=True))
        errors = ((scores - total).exp() - self.targets) * self.weight.unsqueeze(2)
        return errors.transpose(1, 2) @ self.examples

    def _curvature(self) -> Tensor:
        """The largest eigenvalue of the weighted second moments of the examples ``[E, 1, 1]``."""
        weight = self.weight.unsqueeze(2)
        along = (self.examples * weight).sum(1, keepdim=True).transpose(1, 2)  # [E, D, 1]
        size = along.new_ones(len(along), 1, 1)
        for _ in range(_POWER_STEPS):
            along = along / torch.linalg.vector_norm(along, dim=1, keepdim=True).clamp(min=1e-12)
            along = (self.examples * weight).transpose(1, 2) @ (self.examples @ along)
            size = torch.linalg.vector_norm(along, dim=1, keepdim=True)
        return 1.1 * size
