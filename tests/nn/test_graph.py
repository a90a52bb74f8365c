"""The class graph against an oracle that sorts every class's similarities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.nn import ClassGraph, build_graph, unit
from wdae.nn.graph import GraphExtension, extend_graph


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def oracle(rows: Tensor, n_neighbours: int) -> tuple[list[list[int]], list[list[float]]]:
    """Neighbours (nearest first) and similarities of one episode, by sorting."""
    names, values = [], []
    for i in range(len(rows)):
        others = []
        for j in range(len(rows)):
            if j != i:
                others.append((float(rows[i] @ rows[j] / rows[i].norm() / rows[j].norm()), j))
        others.sort(reverse=True)
        names.append([j for _, j in others[:n_neighbours]])
        values.append([s for s, _ in others[:n_neighbours]])
    return names, values


@pytest.mark.parametrize(("N", "J"), [(2, 10), (5, 10), (11, 10), (12, 10), (30, 4), (30, 1)])
def test_against_sorting(N: int, J: int) -> None:
    rows = weights(3, N, 7)
    graph = build_graph(rows, J, 5.0)
    assert graph.neighbours.shape == graph.strengths.shape == (3, N, min(J, N - 1))
    for e in range(3):
        names, values = oracle(rows[e], J)
        assert graph.neighbours[e].tolist() == names
        for i, row in enumerate(values):
            assert graph.similarities[e, i].tolist() == pytest.approx(row, abs=1e-6)
            powers = [math.exp(5.0 * s) for s in row]
            assert graph.strengths[e, i].tolist() == pytest.approx(
                [p / sum(powers) for p in powers], abs=1e-6
            )


@pytest.mark.parametrize("memory_mb", [1e-9, 1e-4, 1e-3, 3e-3, 1.0])
def test_blocks_of_any_size_give_the_dense_graph(memory_mb: float) -> None:
    rows = weights(2, 41, 9)
    whole, blocked = build_graph(rows, 6, memory_mb=1e6), build_graph(rows, 6, memory_mb=memory_mb)
    assert torch.equal(whole.neighbours, blocked.neighbours)
    torch.testing.assert_close(whole.similarities, blocked.similarities, rtol=0, atol=1e-6)


def test_never_the_whole_matrix_under_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of similarities stay within the cap."""
    sizes = []
    original = Tensor.topk

    def recording(self: Tensor, *args: object, **kwargs: object) -> object:
        sizes.append(self.numel() * self.element_size())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "topk", recording)
    build_graph(weights(500, 4), 5, memory_mb=0.05)
    assert max(sizes) <= 0.05 * 2**20
    assert sum(sizes) == 500 * 500 * 4


def test_without_episodes_and_with_two_leading_dimensions() -> None:
    rows = weights(6, 9, 5)
    graph = build_graph(rows.view(2, 3, 9, 5), 3)
    assert graph.neighbours.shape == (2, 3, 9, 3)
    assert torch.equal(graph.neighbours[1, 2], build_graph(rows[5], 3).neighbours)


def test_no_gradient_and_length_do_not_matter() -> None:
    rows = weights(8, 5).requires_grad_()
    graph = build_graph(rows * torch.rand(8, 1, generator=torch.Generator().manual_seed(1)).add(0.1), 3)
    assert not graph.similarities.requires_grad
    assert torch.equal(graph.neighbours, build_graph(rows, 3).neighbours)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_classes(n: int) -> None:
    with pytest.raises(ModelError, match=f"at least 2 classes, got {n}; give base classes or more novel"):
        build_graph(weights(n, 5))


def whole(extension: GraphExtension, e: int, N: int, changed_only: bool) -> ClassGraph:
    """Episode e's graph over base and novel classes, put together from an extension."""
    node = torch.arange(N)
    if changed_only:
        node = extension.changed[e].nonzero().flatten()
    lists = extension.lists(torch.full_like(node, e), node)
    J = extension.novel.neighbours.shape[-1]
    names, values = extension.base.neighbours.clone(), extension.base.similarities.clone()
    if names.shape[-1] < J:  # then every class is in `node`
        names, values = names.new_zeros(N, J), values.new_zeros(N, J)
    names[node], values[node] = lists.neighbours, lists.similarities
    return ClassGraph(
        torch.cat([names, extension.novel.neighbours[e]]),
        torch.cat([values, extension.novel.similarities[e]]),
    )


@pytest.mark.parametrize("changed_only", [True, False])
@pytest.mark.parametrize(
    ("N", "n", "J"), [(40, 5, 10), (40, 1, 3), (11, 3, 10), (10, 2, 10), (4, 3, 10), (2, 1, 1)]
)
def test_extension_is_the_graph_built_from_scratch(N: int, n: int, J: int, changed_only: bool) -> None:
    base, novel = unit(weights(N, 8)), unit(weights(6, n, 8, seed=1))
    base_graph = build_graph(base, J)
    extension = extend_graph(base_graph, base, novel, J)
    touched = 0
    for e in range(6):
        fresh = build_graph(torch.cat([base, novel[e]]), J)
        ours = whole(extension, e, N, changed_only)
        assert torch.equal(ours.neighbours, fresh.neighbours)
        torch.testing.assert_close(ours.strengths, fresh.strengths, rtol=0, atol=1e-6)
        for i in range(N):  # a class is marked exactly when a newcomer is on its list
            assert bool(extension.changed[e, i]) == bool((fresh.neighbours[i] >= N).any())
        touched += int(extension.changed[e].sum())
    assert touched > 0
    if N == 40:
        assert touched < 6 * N
