"""The last activation and both losses of a training step, fused for a CPU.

Forward and gradient of :meth:`LastUpdate.activate` and :func:`stage2_losses` in one pass over a few episodes
at a time, so that intermediate tensors stay in the cache of a core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wdae.nn.cosine import vector_length
from wdae.runtime.cores import piece_by_piece

_EPISODES = 2  # at once on a core


@dataclass(frozen=True)
class FusedLossInputs:
    """What the losses of E episodes are computed from, apart from what is learned.

    Args:
        weights: noisy weights w̃ ``[E, N, D]``.
        targets: w*, unit rows, ``[E, N, D]``.
        queries: unit rows ``[E, Q, D]``, in the dtype of their products.
        labels: ``[E, Q]``.
        reconstruction, classification: factors of the two terms.
    """

    weights: Tensor
    targets: Tensor
    queries: Tensor
    labels: Tensor
    reconstruction: float = 1.0
    classification: float = 1.0


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mapped: Tensor, scale: Tensor, inputs: FusedLossInputs) -> tuple[Tensor, Tensor]:
        E, N, D = inputs.weights.shape
        Q = inputs.labels.shape[1]
        gamma = float(scale)
        per_class, per_query = inputs.reconstruction * 2 / (E * N), inputs.classification / (E * Q)
        grad = torch.empty_like(mapped)

        def some(start: int) -> Tensor:
            part = slice(start, start + _EPISODES)
            weights, targets, queries = inputs.weights[part], inputs.targets[part], inputs.queries[part]
            labels = inputs.labels[part].unsqueeze(-1)
            delta, gate = mapped[part].to(weights.dtype).chunk(2, dim=-1)
            inverse = vector_length(delta).reciprocal_().unsqueeze(-1)
            direction = delta * inverse
            gate = torch.sigmoid(gate)
            restored = torch.addcmul(weights, gate, direction)
            shrink = vector_length(restored).reciprocal_().unsqueeze(-1)
            restored *= shrink  # unit rows from here on
            cosines = (restored * targets).sum(-1)
            products = (queries @ restored.to(queries.dtype).transpose(1, 2)).to(weights.dtype)  # [e, Q, N]
            scores = products * gamma
            right = scores.argmax(-1, keepdim=True) == labels
            logs = torch.log_softmax(scores, dim=-1)
            picked = logs.gather(-1, labels)

            # Backwards. Through unit(x), a gradient loses its share along x and is divided by x's length.
            g_scores = logs.exp_().scatter_add_(-1, labels, torch.full_like(picked, -1.0)).mul_(per_query)
            g_products = g_scores * gamma
            along = (g_products * products).sum(1).sub_(cosines, alpha=per_class).unsqueeze(-1)  # [e, N, 1]
            g = (g_products.to(queries.dtype).transpose(1, 2) @ queries).to(weights.dtype)  # [e, N, D]
            g.sub_(targets, alpha=per_class).addcmul_(restored, along, value=-1).mul_(shrink)
            g_delta = g.mul_(gate)
            g_gate = g_delta * direction
            along = g_gate.sum(-1, keepdim=True)
            grad[part, :, D:] = g_gate.addcmul_(g_gate, gate, value=-1)
            grad[part, :, :D] = g_delta.addcmul_(direction, along, value=-1).mul_(inverse)
            g_scale = (g_scores * products).sum()
            return torch.stack([(2 - 2 * cosines).sum(), -picked.sum(), right.sum(), g_scale])

        sums = torch.stack(piece_by_piece(some, range(0, E, _EPISODES))).sum(0)
        reconstruction, classification, accuracy = sums[0] / (E * N), sums[1] / (E * Q), sums[2] / (E * Q)
        ctx.save_for_backward(grad, sums[3].to(scale.dtype))
        total = inputs.reconstruction * reconstruction + inputs.classification * classification
        values = torch.stack([reconstruction, classification, accuracy])
        ctx.mark_non_differentiable(values)
        return total, values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad, g_scale = ctx.saved_tensors
        up = grads[0]
        return grad * up.to(grad.dtype), g_scale * up, None


def fused_loss(mapped: Tensor, scale: Tensor, inputs: FusedLossInputs) -> tuple[Tensor, Tensor]:
    """The loss of eq. 6, and ``[3]`` values without gradient: both terms unweighted, and the accuracy.

    Args:
        mapped: ``C [h; m] + c`` of the last layer ``[E, N, 2D]``.
        scale: γ.
        inputs: the rest.
    """
    total, values = _FusedLoss.apply(mapped, scale, inputs)
    return total, values
