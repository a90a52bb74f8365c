"""Refining novel classes against base classes that stay the same: exact, at a fraction of the cost.

In evaluation the base rows' share of every linear map is the same in all episodes, and so is everything
about a base class that no novel class came near to. :class:`BaseState` computes that once. Adding novel
classes then recomputes only the *active* nodes: the novel ones, and the base ones whose result changes
(or, if only novel results are asked for, those a novel result depends on). The outcome is that of
:func:`wdae.generate.refine` over all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import DEFAULT_MEMORY_MB, ClassGraph, GraphExtension, build_graph, extend_graph
from wdae.nn.layers import SLOPE, LastUpdate, PartedLinear, part_scales

# Messages are computed in blocks that stay in the cache of a CPU core; on other devices, under the cap.
_CPU_BLOCK_MB = 2.0


@dataclass(frozen=True)
class _SplitLinear:
    """A linear map split by input: from the weight w, from the hidden parts u_k, from the message."""

    from_weight: Tensor
    bias: Tensor | None
    from_hidden: list[Tensor]
    from_message: Tensor | None

    def weight_share(self, weights: Tensor) -> Tensor:
        return F.linear(weights, self.from_weight, self.bias)

    def add_hidden(self, share: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        for part, block in zip(hidden, self.from_hidden, strict=True):
            share = share + F.linear(part, block)
        return share


@dataclass(frozen=True)
class _LayerState:
    """One layer's maps, and what base classes alone give: shares of w ``[N, ·]``, nodes ``[N, H]``."""

    update: _SplitLinear
    update_share: Tensor
    message: _SplitLinear | None = None
    message_share: Tensor | None = None
    nodes: Tensor | None = None


@dataclass(frozen=True)
class Refined:
    """Reconstructions ``r`` for E episodes.

    Shapes: novel ``[E, n, D]``; episode, node ``[P]`` and base ``[P, D]``: the base classes whose
    reconstruction differs from ``BaseState.reconstructed`` (empty if not asked for).
    """

    novel: Tensor
    episode: Tensor
    node: Tensor
    base: Tensor


class BaseState:
    """Everything about a set of base classes that novel classes do not change.

    Args:
        denoiser: its parameters as they are now; evaluation mode is implied.
        base: base weights ``[N, D]``.
        n_neighbours, inverse_temperature: of the class graph.
        graph: the base graph, if it is known already (building it costs O(N²)).
        memory_mb: cap on similarity blocks and on the messages held at once.
        dtype: of the large products; bfloat16 is faster where the hardware has it.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        base: Tensor,
        n_neighbours: int = 10,
        inverse_temperature: float = 5.0,
        graph: ClassGraph | None = None,
        memory_mb: float = DEFAULT_MEMORY_MB,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.base = unit(base.float())
        self.n_neighbours = n_neighbours
        self.memory_mb = memory_mb
        self.dtype = dtype
        self.layers = denoiser.stack
        if denoiser.kind == "gnn" and graph is None:
            graph = build_graph(self.base, n_neighbours, inverse_temperature, memory_mb)
        self.graph = graph if denoiser.kind == "gnn" else None
        self.states: list[_LayerState] = []
        self.reconstructed = self._reconstruct_base()  # [N, D]

    @torch.no_grad()
    def _reconstruct_base(self) -> Tensor:
        """Run the base classes alone through all layers, keeping what later calls need."""
        weights = self.base.to(self.dtype)
        hidden: list[Tensor] = []
        for layer in self.layers:
            scales = part_scales(1 + len(hidden))
            update = self._split(layer.update.linear, scales, has_message=layer.message is not None)
            share = update.weight_share(weights)
            mapped = update.add_hidden(share, hidden)
            state = _LayerState(update, share)
            if layer.message is not None:
                assert self.graph is not None
                gain, shift = layer.message.fold()
                linear = layer.message.linear
                blocks = [(gain[:, None] * b).to(self.dtype) for b in linear.blocks(scales)]
                bias = (linear.bias * gain + shift).to(self.dtype)
                split = _SplitLinear(blocks[0], bias, blocks[1:], None)
                message_share = split.weight_share(weights)
                nodes = split.add_hidden(message_share, hidden)
                state = _LayerState(update, share, split, message_share, nodes)
                message = self._messages(nodes, nodes, self.graph.neighbours, self.graph.strengths)
                assert update.from_message is not None
                mapped = mapped + F.linear(message, update.from_message)
            self.states.append(state)
            if isinstance(layer.update, LastUpdate):
                return layer.update.activate(self.base, mapped.float())
            hidden.append(layer.update.activate(mapped).to(self.dtype))
        raise AssertionError("a denoiser ends in a LastUpdate")

    def _split(self, linear: PartedLinear, scales: list[float], has_message: bool) -> _SplitLinear:
        blocks = [b.to(self.dtype) for b in linear.blocks([*scales, 1.0] if has_message else scales)]
        from_message = blocks.pop() if has_message else None
        bias = None if linear.bias is None else linear.bias.to(self.dtype)
        return _SplitLinear(blocks[0], bias, blocks[1:], from_message)

    @torch.no_grad()
    def refine(self, novel: Tensor, with_base: bool = True) -> Refined:
        """Reconstruct unit novel estimates ``[E, n, D]`` beside the base classes.

        With ``with_base`` the base classes whose reconstruction changes are returned too; without, only
        what the novel ones depend on is computed.
        """
        E, n, D = novel.shape
        N = self.base.shape[0]
        flat = novel.reshape(E * n, D)
        weights = flat.to(self.dtype)
        episode = node = torch.zeros(0, dtype=torch.int64, device=novel.device)
        if self.graph is not None:
            extension = extend_graph(self.graph, self.base, novel, self.n_neighbours)
            episode, node = self._affected(extension, with_base).nonzero(as_tuple=True)  # [P]
            lists = extension.lists(episode, node)
            strengths = torch.cat([extension.novel.strengths.flatten(0, 1), lists.strengths])  # [M, J]
            # Rows of a layer's nodes: base classes alone, then the active ones: novel, affected base.
            active = N + torch.arange(E * n + len(node), device=novel.device)  # [M]
            rows = torch.cat([active.new_tensor(range(N)).expand(E, N), active[: E * n].view(E, n)], dim=1)
            rows[episode, node] = active[E * n :]
            senders = torch.cat(
                [
                    rows.gather(1, extension.novel.neighbours.flatten(1)).view(E * n, -1),
                    rows[episode.unsqueeze(-1), lists.neighbours],
                ]
            )  # [M, J]

        hidden: list[Tensor] = []  # u_1, u_2, ... of the active nodes, each [M, H]
        for layer, state in zip(self.layers, self.states, strict=True):
            last = isinstance(layer.update, LastUpdate)
            wanted = E * n if last and not with_base else E * n + len(node)
            share = torch.cat([state.update.weight_share(weights), state.update_share[node]])[:wanted]
            mapped = state.update.add_hidden(share, [u[:wanted] for u in hidden])
            if state.message is not None:
                assert state.nodes is not None and state.message_share is not None
                own = torch.cat([state.message.weight_share(weights), state.message_share[node]])
                own = state.message.add_hidden(own, hidden)
                nodes = torch.cat([state.nodes, own])
                message = self._messages(nodes, own[:wanted], senders[:wanted], strengths[:wanted])
                assert state.update.from_message is not None
                mapped = mapped + F.linear(message, state.update.from_message)
            if isinstance(layer.update, LastUpdate):
                start = torch.cat([flat, self.base[node]])[:wanted]
                out = layer.update.activate(start, mapped.float())
                kept = slice(0, wanted - E * n)
                return Refined(out[: E * n].view(E, n, D), episode[kept], node[kept], out[E * n :])
            hidden.append(layer.update.activate(mapped).to(self.dtype))
        raise AssertionError("a denoiser ends in a LastUpdate")

    def _affected(self, extension: GraphExtension, with_base: bool) -> Tensor:
        """Base classes to recompute, ``[E, N]``: those that change, or that novel results depend on."""
        assert self.graph is not None
        near = self.graph.neighbours
        changed = extension.changed
        hops = len(self.layers) - (1 if with_base else 2)
        for _ in range(hops):  # a change travels one edge a layer
            changed = changed | changed[:, near].any(-1)
        if with_base:
            return changed
        if hops < 0:
            return torch.zeros_like(changed)
        N = changed.shape[1]
        needed = torch.zeros(
            changed.shape[0], N + extension.to_base.shape[1], dtype=torch.bool, device=near.device
        )
        needed.scatter_(1, extension.novel.neighbours.flatten(1), True)
        needed = needed[:, :N]
        for _ in range(hops):
            episode, node = needed.nonzero(as_tuple=True)
            needed[episode.unsqueeze(-1), near[node]] = True
        return needed & changed

    def _messages(self, nodes: Tensor, own: Tensor, senders: Tensor, strengths: Tensor) -> Tensor:
        """``Σ_j a_ij LeakyReLU(y_i + y_j)`` in blocks of receivers: ``[M, H]``."""
        M, J = senders.shape
        H = nodes.shape[1]
        cap = min(self.memory_mb, _CPU_BLOCK_MB) if nodes.device.type == "cpu" else self.memory_mb
        block = max(1, int(cap * 2**20 / (J * H * nodes.element_size())))
        strengths = strengths.to(nodes.dtype)
        out = torch.empty_like(own)
        for start in range(0, M, block):
            part = slice(start, start + block)
            sent = nodes.index_select(0, senders[part].reshape(-1)).view(-1, J, H)
            sent += own[part].unsqueeze(1)
            F.leaky_relu_(sent, SLOPE)
            torch.sum(sent.mul_(strengths[part].unsqueeze(-1)), dim=1, out=out[part])
        return out
