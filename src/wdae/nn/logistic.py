"""Multinomial logistic regression with an L2 penalty, for a batch of small problems at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wdae.runtime.device import full_precision

_TOLERANCE = 1e-5  # on the length of an episode's gradient, per unit of weight
_NEWTON_STEPS, _INNER_STEPS = 15, 50  # at most
Pair = tuple[Tensor, Tensor]
"""Coefficients of the examples ``[E, M, C]`` and biases ``[E, 1, C]``."""
Product = Callable[[Tensor], Tensor]
"""Multiplies coefficients by the Gram matrix of the examples."""


@torch.no_grad()
def logistic_regression(
    features: Tensor,
    targets: Tensor,
    weight: Tensor,
    strength: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Minimise ``C Σ_i s_i CE(W x_i + b, y_i) + ½ ‖W‖²`` (b is not penalised), as scikit-learn does.

    Newton's method with conjugate gradients and step halving. At the optimum ``W = Aᵀ X``, so everything runs
    on the M × M Gram matrix G of the examples, whatever D is; of many examples it is never written out.

    Args:
        features: ``[E, M, D]``.
        targets: one-hot ``[E, M, C]``.
        weight: s ``[E, M]``; 0 leaves an example out.
        strength: C; larger fits the examples more closely.

    Returns:
        Weights ``[E, C, D]`` and biases ``[E, C]``.
    """
    with full_precision(features):
        X, Y, s = features.float(), targets.float(), strength * weight.float().unsqueeze(-1)
        transposed = X.transpose(-1, -2)
        G = X @ transposed if X.shape[1] <= 2 * X.shape[2] else None  # [E, M, M]

        def gram(A: Tensor) -> Tensor:
            return X @ (transposed @ A) if G is None else G @ A

        A, b = torch.zeros_like(Y), Y.new_zeros(Y.shape[0], 1, Y.shape[2])
        loss = _loss(A, b, gram(A), Y, s)
        enough = _TOLERANCE * (1 + s.sum((1, 2), keepdim=True))  # what rounding allows grows with the sums
        for _ in range(_NEWTON_STEPS):
            GA = gram(A)
            P = torch.softmax(GA + b, -1)
            R = s * (P - Y)
            slope = (A + R, R.sum(1, keepdim=True))
            step, length = _newton_step(slope, P, s, gram, enough)
            if bool((length <= enough).all()):
                break
            size = Y.new_ones(Y.shape[0], 1, 1)
            for _ in range(8):
                new = (A - size * step[0], b - size * step[1])
                new_loss = _loss(*new, gram(new[0]), Y, s)
                better = (new_loss <= loss + 1e-6 * (1 + loss)).view(-1, 1, 1)  # False for NaN too
                if bool(better.all()):
                    break
                size = torch.where(better, size, size / 2)
            A, b = torch.where(better, new[0], A), torch.where(better, new[1], b)
            loss = torch.where(better.flatten(), new_loss, loss)
        return A.transpose(-1, -2) @ X, b.squeeze(1)


def _loss(A: Tensor, b: Tensor, GA: Tensor, Y: Tensor, s: Tensor) -> Tensor:
    """The objective, one value an episode."""
    entropy = -(s * Y * torch.log_softmax(GA + b, -1)).sum((1, 2))
    return entropy + 0.5 * (A * GA).sum((1, 2))


def _newton_step(slope: Pair, P: Tensor, s: Tensor, gram: Product, tolerance: Tensor) -> tuple[Pair, Tensor]:
    """Conjugate gradients for ``H d = slope``; also the slope's length. One product with G an iteration."""
    residual, Gr = slope, gram(slope[0])
    step = (torch.zeros_like(slope[0]), torch.zeros_like(slope[1]))
    direction, Gd = residual, Gr
    square = _inner(residual, residual, Gr).clamp(min=0)
    length = square.sqrt()
    enough = torch.maximum(0.05 * length, 0.1 * tolerance).square()  # a step need not be exact
    for _ in range(_INNER_STEPS):
        active = square > enough  # an episode that is done stands still: rounding alone would move it
        if not bool(active.any()):
            break
        u = Gd + direction[1]
        bent = s * P * (u - (P * u).sum(-1, keepdim=True))
        product = (direction[0] + bent, bent.sum(1, keepdim=True))
        curvature = _inner(direction, product, Gd)  # positive but for rounding
        ahead = torch.where(active & (curvature > 0), square / curvature, 0.0).clamp(max=1e3)
        step = (step[0] + ahead * direction[0], step[1] + ahead * direction[1])
        residual = (residual[0] - ahead * product[0], residual[1] - ahead * product[1])
        Gr = gram(residual[0])
        new_square = _inner(residual, residual, Gr).clamp(min=0)
        ratio = torch.where(active, new_square / square.clamp(min=1e-30), 0.0)
        direction = (residual[0] + ratio * direction[0], residual[1] + ratio * direction[1])
        Gd, square = Gr + ratio * Gd, new_square
    return step, length


def _inner(x: Pair, y: Pair, Gx: Tensor) -> Tensor:
    """Inner product in the space of (W, b): ``x'Gx``-like for the coefficients ``[E, 1, 1]``."""
    return (Gx * y[0]).sum((1, 2), keepdim=True) + (x[1] * y[1]).sum((1, 2), keepdim=True)
