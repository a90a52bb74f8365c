"""The denoising autoencoder of classification weights: wDAE-GNN and wDAE-MLP."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn

from wdae.errors import ModelError
from wdae.nn.graph import ClassGraph
from wdae.nn.layers import HiddenUpdate, LastUpdate, PairwiseMessage, init_linear
from wdae.nn.split_linear import autocast_dtype

Kind = Literal["gnn", "mlp"]


class Layer(nn.Module):
    """One layer: a message from the neighbours (GNN only), then an update of every node."""

    def __init__(self, message: PairwiseMessage | None, update: HiddenUpdate | LastUpdate) -> None:
        super().__init__()
        self.message = message
        self.update = update


class Denoiser(nn.Module):
    """``r(w̃)``: the weights of all classes in, their reconstruction out (eq. 7 to 12).

    Hidden layers append ``u`` to each node's state; the last one predicts a gated residual of the input
    weight. wDAE-MLP is the same without messages: each class alone.

    Departs from the paper's text, with the authors' code: the state is divided by √2 at each
    concatenation, which keeps it at unit length.

    Args:
        dim: feature size D.
        hidden: size H of messages and hidden states.
        n_layers: L ≥ 1, the last one included.
        dropout: ratio for messages and hidden updates.
        kind: "gnn" or "mlp".
        generator: source of the initial parameters.

    >>> from wdae.nn import build_graph
    >>> denoiser = Denoiser(dim=8, hidden=4).eval()
    >>> weights = torch.nn.functional.normalize(torch.randn(3, 20, 8), dim=-1)  # 3 episodes, 20 classes
    >>> denoiser(weights, build_graph(weights)).shape
    torch.Size([3, 20, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 320,
        n_layers: int = 2,
        dropout: float = 0.95,
        kind: Kind = "gnn",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if n_layers < 1:
            raise ModelError(f"a denoiser has at least 1 layer, got n_layers={n_layers}")
        if kind not in ("gnn", "mlp"):
            raise ModelError(f"a denoiser is of kind 'gnn' or 'mlp', got {kind!r}")
        self.dim, self.hidden, self.n_layers, self.dropout, self.kind = dim, hidden, n_layers, dropout, kind
        self.layers = nn.ModuleList()
        for depth in range(n_layers):
            sizes = [dim] + [hidden] * depth
            message = PairwiseMessage(sizes, hidden, dropout) if kind == "gnn" else None
            inputs = [*sizes, hidden] if kind == "gnn" else sizes
            last = depth == n_layers - 1
            update = LastUpdate(inputs, dim) if last else HiddenUpdate(inputs, hidden, dropout)
            self.layers.append(Layer(message, update))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear(module, generator)

    def forward(
        self, weights: Tensor, graph: ClassGraph | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Reconstruct weights ``[E, N, D]``; ``graph`` is required for a GNN and ignored by an MLP.

        ``generator`` draws the dropout masks in training; without one torch's default is used.
        """
        mapped = self.map(weights, graph, generator)
        last = self.stack[-1].update
        assert isinstance(last, LastUpdate)
        return last.activate(weights, mapped)

    def map(
        self, weights: Tensor, graph: ClassGraph | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """All linear maps, up to ``C [h; m] + c`` of the last layer (eq. 11): ``[E, N, 2D]``."""
        if self.kind == "gnn" and graph is None:
            raise ModelError("a GNN denoiser needs the class graph; build it with build_graph(initial)")
        strengths = None if graph is None else graph.strengths
        # Under autocast every product would cast the weights anew; here it happens once.
        parts = [weights.to(autocast_dtype(weights))]
        for layer in self.stack:
            message = None
            if layer.message is not None:
                assert graph is not None and strengths is not None
                message = layer.message(parts, graph.neighbours, strengths, generator)
            if isinstance(layer.update, LastUpdate):
                break
            parts.append(layer.update(parts, message, generator))
        return layer.update.linear.apply_state(parts, message)

    @property
    def stack(self) -> list[Layer]:
        """The layers, typed."""
        return cast(list[Layer], list(self.layers))
