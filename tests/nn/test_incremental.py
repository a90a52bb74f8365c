"""The quick path for fixed base classes against the plain computation over all classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wdae.nn import Denoiser, build_graph, unit
from wdae.nn.generate import refine
from wdae.nn.incremental import BaseState


def denoiser(kind: str, n_layers: int, dim: int, hidden: int = 10) -> Denoiser:
    net = Denoiser(dim, hidden, n_layers, 0.9, kind, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(2)
    for name, tensor in net.state_dict().items():
        if name.endswith("linear.weight"):
            tensor.mul_(4)  # so that a message forgotten three edges away shows
        if ".norm." in name and tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=source)
            tensor.copy_(0.5 + noise.abs() if name.endswith(("var", "weight")) else 0.3 * noise)
    return net.eval()


def classes(*shape: int, seed: int = 0) -> Tensor:
    return unit(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


@torch.no_grad()
def check(net: Denoiser, base: Tensor, novel: Tensor, J: int, memory_mb: float = 256.0) -> int:
    """Every row equal, for both forms of the question; returns how many base rows had to be recomputed."""
    E, N = novel.shape[0], base.shape[0]
    initial = torch.cat([base.expand(E, -1, -1), novel], dim=1)
    graph = build_graph(initial, J) if net.kind == "gnn" else None
    expected = net(initial, graph)
    state = BaseState(net, base, J, memory_mb=memory_mb)
    refined = state.refine(novel, with_base=True)
    out = torch.cat([state.reconstructed.expand(E, -1, -1), refined.novel], dim=1).contiguous()
    out[refined.episode, refined.node] = refined.base
    torch.testing.assert_close(out, expected, rtol=0, atol=3e-6)
    alone = state.refine(novel, with_base=False)
    torch.testing.assert_close(alone.novel, expected[:, N:], rtol=0, atol=3e-6)
    assert len(alone.episode) == len(alone.node) == len(alone.base) == 0
    # eq. 4 from here is the public refinement
    moved = initial + 0.3 * (unit(out) - initial)
    torch.testing.assert_close(moved, refine(net, initial, 0.3, n_neighbours=J), rtol=0, atol=3e-6)
    return len(refined.node)


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
@pytest.mark.parametrize(("N", "n", "J"), [(2, 1, 10), (6, 3, 10), (10, 5, 10), (60, 5, 10), (60, 4, 3)])
def test_equal_to_the_computation_over_all_classes(kind: str, n_layers: int, N: int, n: int, J: int) -> None:
    redone = check(denoiser(kind, n_layers, 9), classes(N, 9), classes(7, n, 9, seed=1), J)
    assert (redone == 0) == (kind == "mlp")


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_many_base_classes_are_mostly_left_alone(n_layers: int) -> None:
    """Novel classes near a few base classes touch those and their surroundings only."""
    base = classes(600, 12)
    novel = unit(base[:4] + 0.2 * classes(3, 4, 12, seed=4))
    redone = check(denoiser("gnn", n_layers, 12), base, novel, 3)
    assert 0 < redone < 3 * 600 / 2


def test_novel_classes_far_from_all_others() -> None:
    """No base class takes a newcomer for a neighbour: nothing to recompute."""
    base = torch.cat([classes(30, 6), torch.zeros(30, 2)], dim=1)
    novel = torch.zeros(2, 1, 8)
    novel[..., 6] = 1.0
    assert check(denoiser("gnn", 2, 8), unit(base.abs()), novel, 3) == 0


@pytest.mark.parametrize("memory_mb", [1e-9, 1e-3, 0.02])
def test_any_memory_cap_gives_the_same(memory_mb: float) -> None:
    check(denoiser("gnn", 3, 9), classes(40, 9), classes(5, 3, 9, seed=1), 5, memory_mb)


def test_a_graph_given_is_used_and_the_base_need_not_be_unit() -> None:
    net, base, novel = denoiser("gnn", 2, 9), classes(40, 9), classes(5, 3, 9, seed=1)
    own = BaseState(net, base, 5)
    given = BaseState(net, 3.0 * base, 5, graph=build_graph(base, 5))
    torch.testing.assert_close(own.refine(novel).novel, given.refine(novel).novel, rtol=1e-5, atol=1e-6)


def test_episodes_do_not_touch_each_other() -> None:
    net, base, novel = denoiser("gnn", 3, 9), classes(40, 9), classes(5, 3, 9, seed=1)
    together = BaseState(net, base, 5).refine(novel)
    for e in range(5):
        alone = BaseState(net, base, 5).refine(novel[e : e + 1])
        torch.testing.assert_close(alone.novel[0], together.novel[e], rtol=1e-5, atol=1e-6)
        assert torch.equal(alone.node, together.node[together.episode == e])


@torch.no_grad()
def test_order_of_novel_classes_does_not_matter() -> None:
    net, base, novel = denoiser("gnn", 2, 9), classes(40, 9), classes(5, 4, 9, seed=1)
    order = torch.tensor([2, 0, 3, 1])
    state = BaseState(net, base, 5)
    torch.testing.assert_close(
        state.refine(novel).novel[:, order], state.refine(novel[:, order]).novel, rtol=1e-5, atol=1e-6
    )


def test_evaluation_mode_is_implied_and_training_mode_kept() -> None:
    net, base, novel = denoiser("gnn", 2, 9), classes(40, 9), classes(5, 3, 9, seed=1)
    expected = BaseState(net, base, 5).refine(novel).novel
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()
    assert torch.equal(BaseState(net, base, 5).refine(novel).novel, expected)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
def test_bfloat16_stays_near_float32(kind: str) -> None:
    net, base, novel = denoiser(kind, 2, 32, 24), classes(40, 32), classes(5, 3, 32, seed=1)
    exact = BaseState(net, base, 5).refine(novel)
    rough = BaseState(net, base, 5, dtype=torch.bfloat16).refine(novel)
    assert rough.novel.dtype == torch.float32
    assert torch.equal(rough.node, exact.node)  # the graph does not depend on the dtype of the products
    cosine = (unit(rough.novel) * unit(exact.novel)).sum(-1)
    assert float(cosine.min()) > 0.999
    assert float((rough.novel - exact.novel).abs().max()) > 0  # it did compute in bfloat16
