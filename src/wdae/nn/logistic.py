"""Multinomial logistic regression with an L2 penalty, for a batch of small problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.nn.precision import full_precision

_CHECK_EVERY = 20


@torch.no_grad()
def logistic_regression(
    features: Tensor,
    targets: Tensor,
    weight: Tensor,
    strength: float = 1.0,
    *,
    tolerance: float = 1e-5,
    max_iterations: int = 3000,
) -> tuple[Tensor, Tensor]:
    """Minimise ``C Σ_i s_i CE(W x_i + b, y_i) + ½ ‖W‖²`` (b is not penalised), as scikit-learn does.

    At every step ``W = Aᵀ X``, so all iterations run on the M × M products of the examples, whatever D is:
    gradient steps with momentum, restarted for each problem whose momentum points uphill.

    Args:
        features: ``[E, M, D]``.
        targets: one-hot ``[E, M, C]``.
        weight: s ``[E, M]``; 0 leaves an example out.
        strength: C; larger fits the examples more closely.
        tolerance: on the largest entry of the gradient.

    Returns:
        Weights ``[E, C, D]`` and biases ``[E, C]``.
    """
    with full_precision(features):
        X, Y, s = features.float(), targets.float(), strength * weight.float().unsqueeze(-1)
        gram = X @ X.transpose(-1, -2)  # [E, M, M]
        # Softmax bends at most by 1/2; the largest eigenvalue is at most the largest absolute row sum.
        bend = (s * (gram.abs() + 1)).sum(-2).amax(-1).view(-1, 1, 1)
        step = 1 / (1 + 0.5 * bend)
        E, _, C = Y.shape
        dual, bias = torch.zeros_like(Y), Y.new_zeros(E, 1, C)
        ahead_dual, ahead_bias = dual, bias
        pace = Y.new_ones(E, 1, 1)
        for iteration in range(max_iterations):
            residual = s * (torch.softmax(gram @ ahead_dual + ahead_bias, -1) - Y)
            slope, slope_bias = ahead_dual + residual, residual.sum(1, keepdim=True)
            if iteration % _CHECK_EVERY == _CHECK_EVERY - 1:
                worst = torch.maximum(slope.abs().amax(), slope_bias.abs().amax())
                if float(worst) <= tolerance:
                    break
            new_dual, new_bias = ahead_dual - step * slope, ahead_bias - step * slope_bias
            uphill = (slope * (gram @ (new_dual - dual))).sum((1, 2), keepdim=True)
            uphill = uphill + (slope_bias * (new_bias - bias)).sum((1, 2), keepdim=True)
            pace = torch.where(uphill > 0, torch.ones_like(pace), pace)
            next_pace = (1 + (1 + 4 * pace.square()).sqrt()) / 2
            momentum = (pace - 1) / next_pace
            ahead_dual = new_dual + momentum * (new_dual - dual)
            ahead_bias = new_bias + momentum * (new_bias - bias)
            dual, bias, pace = new_dual, new_bias, next_pace
        return dual.transpose(-1, -2) @ X, bias.squeeze(1)
