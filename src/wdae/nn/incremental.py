"""Exact refinement of novel classes when the base classes stay the same, at a fraction of the cost.

:class:`BaseState` runs the base classes through the denoiser once. Adding novel classes then recomputes only
the *active* nodes: the novel ones, and the base ones whose result changes (or, if only novel results are
asked for, those a novel result depends on). The result is that of :func:`wdae.nn.generate.refine`.

Of very many base classes, whose graph has an index, nothing is computed ahead: novel results depend on the
classes a few edges around them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser, Layer
from wdae.nn.graph import (
    DEFAULT_MEMORY_MB,
    ClassGraph,
    GraphExtension,
    build_graph,
    extend_graph,
    surroundings,
)
from wdae.nn.layers import SLOPE, HiddenUpdate, LastUpdate, fold_batch_norm
from wdae.nn.split_linear import part_scales

# Messages are computed in blocks that stay in the cache of a CPU core; on other devices, under the cap.
_CPU_BLOCK_MB = 2.0
_ROWS = 16_384  # classes of a block, where there are very many
_ROUND = 64  # numbers of rows are multiples of it


@dataclass(frozen=True)
class _FoldedLinear:
    """A linear map split by input: the weight w, and the rest ``[u_1; u_2; ...; m]`` in one block."""

    from_weight: Tensor
    bias: Tensor
    from_rest: Tensor | None

    @staticmethod
    def of(blocks: Sequence[Tensor], bias: Tensor, dtype: torch.dtype) -> _FoldedLinear:
        """From blocks of columns, one for each part of the input, that of the weight first."""
        rest = torch.cat(list(blocks[1:]), dim=1).to(dtype) if len(blocks) > 1 else None
        return _FoldedLinear(blocks[0].to(dtype), bias.to(dtype), rest)

    def share(self, weights: Tensor) -> Tensor:
        """The contribution of the weights."""
        return F.linear(weights, self.from_weight, self.bias)

    def add_rest(self, share: Tensor, rest: Sequence[Tensor]) -> Tensor:
        """Add the contribution of the other parts, in place."""
        if self.from_rest is None:
            return share
        joined = rest[0] if len(rest) == 1 else torch.cat(list(rest), dim=1)
        return share.addmm_(joined, self.from_rest.T)


@dataclass(frozen=True)
class _LayerState:
    """One layer's maps and their results for base classes alone: shares of w ``[N, ·]``, nodes ``[N, H]``."""

    update: _FoldedLinear
    update_share: Tensor
    message: _FoldedLinear | None = None
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


def _activate(mapped: Tensor) -> Tensor:
    """``u`` from ``BatchNorm(B [h; m])``, in float32."""
    return unit(F.leaky_relu(mapped.float(), SLOPE))


def _join(novel: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Rows of novel nodes, then the given rows of a base table, without an extra copy: ``[M, ·]``."""
    out = novel.new_empty(len(novel) + len(rows), novel.shape[1])
    out[: len(novel)] = novel
    torch.index_select(table, 0, rows, out=out[len(novel) :])
    return out


def _padded(index: Tensor, others: int) -> Tensor:
    """An index with its last entry repeated until it and so many others are a multiple of 64.

    Matrix products are set up anew for every size, which takes as long as hundreds of rows.
    """
    P = len(index)
    more = -(others + P) % _ROUND if P else 0
    return torch.cat([index, index[-1:].expand(more)])


class BaseState:
    """The denoiser's results for base classes alone, computed once for all novel classes.

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
        known = graph is not None and graph.index is not None  # then rows are of unit length: no copy
        self.base = base if known else unit(base.float())
        self.n_neighbours = n_neighbours
        self.memory_mb = memory_mb
        self.dtype = dtype
        self.layers = denoiser.stack
        if denoiser.kind == "gnn" and graph is None:
            graph = build_graph(self.base, n_neighbours, inverse_temperature, memory_mb)
        self.graph = graph if denoiser.kind == "gnn" else None
        self.local = self.graph is not None and self.graph.index is not None
        if not self.local:
            _ = self._results

    @property
    def states(self) -> list[_LayerState]:
        """What is kept of each layer."""
        return self._results[0]

    @property
    def reconstructed(self) -> Tensor:
        """Reconstructions of the base classes alone ``[N, D]``."""
        return self._in_blocks if self.local else self._results[1]

    @cached_property
    @torch.no_grad()
    def _results(self) -> tuple[list[_LayerState], Tensor]:
        """Run the base classes alone through all layers, keeping what later calls need."""
        weights = self.base.to(self.dtype)
        states: list[_LayerState] = []
        hidden: list[Tensor] = []
        for layer in self.layers:
            state = self._layer_state(layer, weights, hidden)
            states.append(state)
            messages = []
            if state.nodes is not None:
                assert self.graph is not None
                nodes = state.nodes.float()
                messages = [self._messages(nodes, nodes, self.graph.neighbours, self.graph.strengths)]
            mapped = state.update.add_rest(state.update_share.clone(), [*hidden, *messages])
            if isinstance(layer.update, LastUpdate):
                return states, layer.update.activate(self.base, mapped.float())
            hidden.append(_activate(mapped).to(self.dtype))
        raise AssertionError("a denoiser ends in a LastUpdate")

    @cached_property
    @torch.no_grad()
    def _in_blocks(self) -> Tensor:
        """The same reconstructions, nothing kept for later, in blocks of classes: memory O(N · (D + L·H))."""
        assert self.graph is not None
        N, strengths = len(self.base), self.graph.strengths
        blocks = [slice(start, start + _ROWS) for start in range(0, N, _ROWS)]
        hidden: list[Tensor] = []
        for layer, (update, message) in zip(self.layers, self._folded, strict=True):
            nodes = torch.cat(
                [
                    message.add_rest(message.share(self.base[b]), [u[b] for u in hidden]).float()
                    for b in blocks
                ]
                if message is not None
                else []
            )
            last = layer.update if isinstance(layer.update, LastUpdate) else None
            out = self.base.new_empty(N, self.base.shape[1] if last else layer.update.linear.out_features)
            for b in blocks:
                sent = self._messages(nodes, nodes[b], self.graph.neighbours[b], strengths[b])
                mapped = update.add_rest(update.share(self.base[b]), [*(u[b] for u in hidden), sent]).float()
                out[b] = last.activate(self.base[b], mapped) if last else _activate(mapped)
            if last:
                return out
            hidden.append(out)
        raise AssertionError("a denoiser ends in a LastUpdate")

    def _maps(self, layer: Layer, n_hidden: int) -> tuple[_FoldedLinear, _FoldedLinear | None]:
        """A layer's maps, update and message, with their BatchNorm, in evaluation linear too, folded in."""
        scales = part_scales(1 + n_hidden)
        blocks = layer.update.linear.blocks([*scales, 1.0] if layer.message is not None else scales)
        bias: Tensor = layer.update.linear.bias
        if isinstance(layer.update, HiddenUpdate):
            gain, bias = fold_batch_norm(layer.update.norm)
            blocks = [gain[:, None] * b for b in blocks]
        update = _FoldedLinear.of(blocks, bias, self.dtype)
        if layer.message is None:
            return update, None
        gain, shift = layer.message.fold()
        linear = layer.message.linear
        folded = [gain[:, None] * b for b in linear.blocks(scales)]
        return update, _FoldedLinear.of(folded, linear.bias * gain + shift, self.dtype)

    def _layer_state(self, layer: Layer, weights: Tensor, hidden: list[Tensor]) -> _LayerState:
        """A layer's maps and their results for the base classes."""
        update, message = self._maps(layer, len(hidden))
        if message is None:
            return _LayerState(update, update.share(weights))
        share = message.share(weights)
        nodes = message.add_rest(share.clone(), hidden)
        return _LayerState(update, update.share(weights), message, share, nodes)

    @torch.no_grad()
    def refine(self, novel: Tensor, with_base: bool = True) -> Refined:
        """Reconstruct unit novel estimates ``[E, n, D]`` beside the base classes.

        With ``with_base`` the base classes whose reconstruction changes are returned too; without, only
        what the novel ones depend on is computed.
        """
        if self.local and not with_base:
            return self._refine_locally(novel)
        E, n, D = novel.shape
        N = self.base.shape[0]
        flat = novel.reshape(E * n, D)
        weights = flat.to(self.dtype)
        episode = node = torch.zeros(0, dtype=torch.int64, device=novel.device)
        P = 0  # base classes to recompute
        if self.graph is not None:
            extension = extend_graph(self.graph, self.base, novel, self.n_neighbours)
            episode, node = self._affected(extension, with_base).nonzero(as_tuple=True)  # [P]
            P = len(node)
            episode, node = (_padded(x, E * n) for x in (episode, node))
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
            rest = [u[:wanted] for u in hidden]
            if state.message is not None:
                assert state.nodes is not None and state.message_share is not None
                own = _join(state.message.share(weights), state.message_share, node)
                nodes = torch.cat([state.nodes, state.message.add_rest(own, hidden)]).float()
                rest.append(self._messages(nodes, nodes[N:][:wanted], senders[:wanted], strengths[:wanted]))
            touched = node[: wanted - E * n]
            mapped = state.update.add_rest(
                _join(state.update.share(weights), state.update_share, touched), rest
            )
            if isinstance(layer.update, LastUpdate):
                out = layer.update.activate(_join(flat, self.base, touched), mapped.float())
                found = min(P, len(touched))
                base = out[E * n : E * n + found]
                return Refined(out[: E * n].view(E, n, D), episode[:found], node[:found], base)
            hidden.append(_activate(mapped).to(self.dtype))
        raise AssertionError("a denoiser ends in a LastUpdate")

    def _refine_locally(self, novel: Tensor) -> Refined:
        """Novel results from the classes around them alone, a ring fewer with every layer."""
        assert self.graph is not None
        none = torch.zeros(0, dtype=torch.int64)
        results = []
        for some in novel:
            around = surroundings(self.graph, self.base, some, self.n_neighbours, len(self.layers))
            weights = torch.cat([some, self.base[around.near]])
            lists, strengths, hidden = around.graph.neighbours, around.graph.strengths, list[Tensor]()
            rings = zip(self.layers, around.sizes[:0:-1], around.sizes[-2::-1], self._folded, strict=True)
            for layer, sending, wanted, (update, message) in rings:
                assert message is not None
                nodes = message.add_rest(message.share(weights[:sending]), [u[:sending] for u in hidden])
                sent = self._messages(nodes, nodes[:wanted], lists[:wanted], strengths[:wanted])
                rest = [*(u[:wanted] for u in hidden), sent]
                mapped = update.add_rest(update.share(weights[:wanted]), rest).float()
                if isinstance(layer.update, LastUpdate):
                    results.append(layer.update.activate(some, mapped))
                else:
                    hidden.append(_activate(mapped))
        return Refined(torch.stack(results), none, none, self.base[:0])

    @cached_property
    def _folded(self) -> list[tuple[_FoldedLinear, _FoldedLinear | None]]:
        """The maps of all layers."""
        with torch.no_grad():
            return [self._maps(layer, depth) for depth, layer in enumerate(self.layers)]

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
        """``Σ_j a_ij LeakyReLU(y_i + y_j)`` in blocks of receivers: ``[M, H]``.

        In float32 throughout: on a CPU that is quicker than bfloat16 for anything but a matrix product.
        """
        M, J = senders.shape
        H = nodes.shape[1]
        cap = min(self.memory_mb, _CPU_BLOCK_MB) if nodes.device.type == "cpu" else self.memory_mb
        block = max(1, min(M, int(cap * 2**20 / (J * H * nodes.element_size()))))
        buffer = nodes.new_empty(block * J, H)
        out = torch.empty_like(own)
        for start in range(0, M, block):
            part = slice(start, start + block)
            rows = senders[part].reshape(-1)
            sent = torch.index_select(nodes, 0, rows, out=buffer[: len(rows)]).view(-1, J, H)
            F.leaky_relu_(sent.add_(own[part].unsqueeze(1)), SLOPE)
            torch.bmm(strengths[part].unsqueeze(1), sent, out=out[part].unsqueeze(1))
        return out.to(self.dtype)
