"""Inner loops: gradient steps on parameters of each episode, differentiable in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradient_steps(
    loss: Callable[..., Tensor],
    start: Sequence[Tensor],
    rates: Sequence[Tensor | float],
    *,
    training: bool = False,
    second_order: bool = True,
) -> list[Tensor]:
    """Gradient descent from ``start``, one step for each rate.

    Args:
        loss: of the tensors, *summed* over episodes, so that episodes do not depend on each other.
        start: tensors ``[E, ...]``.
        rates: step sizes; a tensor may be learned, and may differ along the last dimension.
        training: keep the steps in the autograd graph.
        second_order: differentiate through the gradients too (MAML).
    """
    with torch.enable_grad():
        now = [t if training and t.requires_grad else t.detach().requires_grad_() for t in start]
        for rate in rates:
            slopes = torch.autograd.grad(loss(*now), now, create_graph=training and second_order)
            now = [t - rate * g for t, g in zip(now, slopes, strict=True)]
            if not training:
                now = [t.detach().requires_grad_() for t in now]
    return now if training else [t.detach() for t in now]


def support_loss(scores: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy, mean over an episode's examples and summed over episodes.

    Shapes: scores and one-hot targets ``[E, M, C]``, weight ``[E, M]`` (0 for padding).
    """
    entropy = -(targets * torch.log_softmax(scores.float(), -1)).sum(-1)  # [E, M]
    return ((entropy * weight).sum(-1) / weight.sum(-1)).sum()
