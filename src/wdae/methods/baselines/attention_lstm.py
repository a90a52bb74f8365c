"""The attention LSTM of matching networks: queries are embedded in view of the support set."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.nn.linear import linear, orthogonal_linear


class AttentionLSTM(nn.Module):
    """An LSTM that reads the support set by attention: ``f(z, S)``.

    Vinyals et al., "Matching Networks for One Shot Learning", NeurIPS 2016, https://arxiv.org/abs/1606.04080,
    appendix A.1. The order of the set does not matter. Departures: it works in a smaller space of size H, and
    what it adds to a query starts at zero.

    Args:
        dim: feature size D.
        hidden: H.
        n_steps: reading steps.
        generator: source of the initial parameters.
    """

    def __init__(
        self, dim: int, hidden: int = 64, n_steps: int = 3, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.hidden, self.n_steps = hidden, n_steps
        self.reduce = orthogonal_linear(dim, hidden, generator)
        self.gates = linear(3 * hidden, 4 * hidden, generator)
        self.expand = nn.Linear(hidden, dim, bias=False)
        nn.init.zeros_(self.expand.weight)

    def forward(self, queries: Tensor, support: Tensor, mask: Tensor | None = None) -> Tensor:
        """Queries ``[E, Q, D]`` in view of a set ``[E, M, D]`` (mask ``[E, M]``: False is padding)."""
        x, keys = self.reduce(queries), self.reduce(support)  # [E, Q, H], [E, M, H]
        state = cell = read = torch.zeros_like(x)
        for _ in range(self.n_steps):
            gates = self.gates(torch.cat([x, state, read], dim=-1))
            enter, forget, leave, new = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
            state = torch.sigmoid(leave) * torch.tanh(cell) + x
            affinity = state @ keys.transpose(-1, -2)  # [E, Q, M]
            if mask is not None:
                affinity = affinity.masked_fill(~mask.unsqueeze(1), -torch.inf)
            read = torch.softmax(affinity, dim=-1) @ keys
        added: Tensor = self.expand(state - x + read)
        return queries + added
