"""The layers of the denoiser: pairwise messages and node updates.

A node's state is given as its parts, ``[w̃; u_1; ...; u_l]`` (see :mod:`wdae.nn.split_linear`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.nn.cosine import unit, vector_length
from wdae.nn.edge_norm import edge_norm
from wdae.nn.sparse_dropout import sample_group_survivors, sample_survivors, sparse_messages
from wdae.nn.split_linear import SplitLinear, part_scales
from wdae.runtime.cores import in_pieces

SLOPE = 0.01  # of every LeakyReLU
# From this ratio on, computing only the survivors is faster on a CPU than masking.
SPARSE_DROPOUT = 0.8


def dropout(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose mask comes from a generator passed in; without one, from torch's default."""
    if p == 0.0:
        return x
    if generator is None:
        return F.dropout(x, p)
    if p >= SPARSE_DROPOUT and x.device.type == "cpu":  # a few draws for those kept, not one for each
        mask = torch.zeros_like(x).view(-1)
        mask[sample_survivors(mask.numel(), p, generator)] = 1.0 / (1.0 - p)
        return x * mask.view_as(x)
    mask = torch.empty_like(x).bernoulli_(1.0 - p, generator=generator)
    return x * (mask / (1.0 - p))


def fold_batch_norm(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Gain and shift of a BatchNorm in evaluation: ``y = x · gain + shift``."""
    assert norm.running_mean is not None and norm.running_var is not None
    gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return gain, norm.bias - norm.running_mean * gain


class PairwiseMessage(nn.Module):
    """Messages between neighbours and their sum (eq. 9).

    ``m_i = Σ_j a_ij · LeakyReLU(Dropout(BatchNorm(A h_i + A h_j)))``, with one map A for both ends. As in the
    authors' code, BatchNorm runs over all edges of all episodes of the batch; it is computed on nodes, as an
    edge's input is a sum over its two nodes.

    Args:
        sizes: widths of the parts of a node's state.
        hidden: message size H.
        dropout: ratio of message components dropped in training.
    """

    def __init__(self, sizes: Sequence[int], hidden: int, dropout: float) -> None:
        super().__init__()
        self.linear = SplitLinear(sizes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.dropout = dropout

    def forward(
        self,
        parts: Sequence[Tensor],
        neighbours: Tensor,
        strengths: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Aggregate messages.

        Shapes:
            parts of ``[E, N, size_k]``, neighbours and strengths ``[E, N, J]`` → ``[E, N, H]``.
        """
        projected = self.linear.apply_parts(parts, part_scales(len(parts)))  # [E, N, H]
        nodes = (
            self.normalise_batch(projected, neighbours)
            if self.training
            else self.normalise_running(projected)
        )
        return self.aggregate(nodes, neighbours, strengths, generator)

    def fold(self) -> tuple[Tensor, Tensor]:
        """BatchNorm in evaluation as ``y = p·gain + shift`` on nodes, so that an edge is ``y_i + y_j``."""
        gain, shift = fold_batch_norm(self.norm)
        return gain, shift / 2

    def normalise_running(self, projected: Tensor) -> Tensor:
        """Per-node ``y`` with ``y_i + y_j = BatchNorm(p_i + p_j)``, by running statistics."""
        gain, shift = self.fold()
        return projected * gain + shift

    def normalise_batch(self, projected: Tensor, neighbours: Tensor) -> Tensor:
        """The same by the statistics of this batch's edges, which also enter the running ones."""
        norm = self.norm
        edges = neighbours.numel()
        nodes, mean, variance = edge_norm(projected, norm.weight, norm.bias, neighbours, norm.eps)
        with torch.no_grad():
            assert norm.running_mean is not None and norm.running_var is not None
            assert norm.momentum is not None and norm.num_batches_tracked is not None
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * (edges / (edges - 1)), norm.momentum)
            norm.num_batches_tracked.add_(1)
        return nodes

    def aggregate(
        self, nodes: Tensor, neighbours: Tensor, strengths: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """``Σ_j a_ij Dropout(LeakyReLU(y_i + y_j))``; dropout scales by a positive factor, so it commutes."""
        E, N, J = neighbours.shape
        H = nodes.shape[-1]
        p = self.dropout if self.training else 0.0
        if p >= SPARSE_DROPOUT and in_pieces(nodes):
            kept = sample_group_survivors(E, N * J * H, p, generator)
            return sparse_messages(nodes, strengths, neighbours, kept, p, SLOPE)
        offsets = N * torch.arange(E, device=neighbours.device)
        rows = neighbours + offsets[:, None, None]  # [E, N, J] into [E·N]
        sent = nodes.reshape(-1, H)[rows]  # [E, N, J, H]
        messages = dropout(F.leaky_relu(nodes.unsqueeze(2) + sent, SLOPE), p, generator)
        return (strengths.unsqueeze(-1).to(messages.dtype) * messages).sum(2)


class HiddenUpdate(nn.Module):
    """The new part of a node's state (eq. 10): ``u = unit(LeakyReLU(Dropout(BatchNorm(B [h; m]))))``.

    Args:
        sizes: widths of the parts of ``[h; m]``.
        hidden: size H of u.
        dropout: ratio of units dropped in training.
    """

    def __init__(self, sizes: Sequence[int], hidden: int, dropout: float) -> None:
        super().__init__()
        self.linear = SplitLinear(sizes, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.dropout = dropout

    def forward(
        self, parts: Sequence[Tensor], message: Tensor | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Shapes: parts ``[E, N, size_k]``, message ``[E, N, H]`` or None (MLP) → ``[E, N, H]``."""
        mapped = self.linear.apply_state(parts, message)
        normed = self.norm(mapped.flatten(0, -2)).view_as(mapped)
        return unit(F.leaky_relu(dropout(normed, self.dropout if self.training else 0.0, generator), SLOPE))


class LastUpdate(nn.Module):
    """The denoised weight (eq. 11, 12): ``[δ; o] = C [h; m] + c``, ``r = w̃ + sigmoid(o) ⊙ unit(δ)``.

    Args:
        sizes: widths of the parts of ``[h; m]``.
        dim: feature size D.
    """

    def __init__(self, sizes: Sequence[int], dim: int) -> None:
        super().__init__()
        self.linear = SplitLinear(sizes, 2 * dim)

    def forward(self, weights: Tensor, parts: Sequence[Tensor], message: Tensor | None) -> Tensor:
        """Shapes: weights w̃ ``[E, N, D]``, parts ``[E, N, size_k]``, message ``[E, N, H]`` or None (MLP)."""
        return self.activate(weights, self.linear.apply_state(parts, message))

    def activate(self, weights: Tensor, mapped: Tensor) -> Tensor:
        """From ``w̃`` and ``C [h; m] + c`` to ``r``."""
        delta, gate = mapped.chunk(2, dim=-1)
        return torch.addcmul(weights, torch.sigmoid(gate) / vector_length(delta).unsqueeze(-1), delta)


def init_linear(linear: nn.Linear, generator: torch.Generator | None) -> None:
    """Torch's default initialisation, U(±1/√fan_in), drawn from a generator passed in."""
    bound = 1 / math.sqrt(linear.in_features)
    with torch.no_grad():
        linear.weight.uniform_(-bound, bound, generator=generator)
        if linear.bias is not None:
            linear.bias.uniform_(-bound, bound, generator=generator)
