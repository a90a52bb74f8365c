"""The whole denoiser against a naive one, class by class and edge by edge, written with torch.cat."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from seeded import generator
from torch import Tensor

from wdae.errors import ModelError
from wdae.nn import ClassGraph, Denoiser, build_graph, unit


def denoiser(kind: str, n_layers: int, dim: int = 7, hidden: int = 6, dropout: float = 0.0) -> Denoiser:
    """With BatchNorm parameters and statistics away from their start."""
    net = Denoiser(dim, hidden, n_layers, dropout, kind, generator(1))  # type: ignore[arg-type]
    source = generator(2)
    for name, tensor in net.state_dict().items():
        if ".norm." in name and tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=source)
            tensor.copy_(0.5 + noise.abs() if name.endswith(("var", "weight")) else 0.3 * noise)
    return net


def batch_norm(x: Tensor, values: dict[str, Tensor], name: str, training: bool) -> Tensor:
    """By its definition; x is [rows, H]."""
    mean, var = values[f"{name}.running_mean"], values[f"{name}.running_var"]
    if training:
        mean = x.mean(0)
        var = ((x - mean) ** 2).mean(0)
    return (x - mean) / torch.sqrt(var + 1e-5) * values[f"{name}.weight"] + values[f"{name}.bias"]


def naive(net: Denoiser, weights: Tensor, graph: ClassGraph | None, training: bool) -> Tensor:
    values = net.state_dict()
    E, N, D = weights.shape
    h = weights
    for depth in range(net.n_layers):
        inputs = h
        if graph is not None:
            A, a = (
                values[f"layers.{depth}.message.linear.weight"],
                values[f"layers.{depth}.message.linear.bias"],
            )
            J = graph.neighbours.shape[-1]
            edges = [
                A @ h[e, i] + a + A @ h[e, int(graph.neighbours[e, i, j])] + a
                for e in range(E)
                for i in range(N)
                for j in range(J)
            ]
            normed = batch_norm(torch.stack(edges), values, f"layers.{depth}.message.norm", training)
            q = F.leaky_relu(normed, 0.01).view(E, N, J, -1)
            inputs = torch.cat([h, (graph.strengths.unsqueeze(-1) * q).sum(2)], dim=-1)
        mapped = inputs @ values[f"layers.{depth}.update.linear.weight"].T
        if depth == net.n_layers - 1:
            mapped = mapped + values[f"layers.{depth}.update.linear.bias"]
            return weights + torch.sigmoid(mapped[..., D:]) * F.normalize(mapped[..., :D], dim=-1)
        normed = batch_norm(mapped.view(E * N, -1), values, f"layers.{depth}.update.norm", training)
        u = F.normalize(F.leaky_relu(normed, 0.01), dim=-1).view(E, N, -1)
        h = torch.cat([h, u], dim=-1) / 2**0.5
    raise AssertionError


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@torch.no_grad()
def test_against_the_naive_denoiser(kind: str, n_layers: int, training: bool) -> None:
    net = denoiser(kind, n_layers).train(training)
    weights = unit(torch.randn(2, 12, 7, generator=generator()))
    graph = build_graph(weights, 4) if kind == "gnn" else None
    slow = naive(net, weights, graph, training)
    torch.testing.assert_close(net(weights, graph), slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("n_layers", [1, 3])
@torch.no_grad()
def test_permuting_the_classes_permutes_the_output(kind: str, n_layers: int) -> None:
    weights = unit(torch.randn(2, 15, 7, generator=generator()))
    order = torch.randperm(15, generator=generator(5))
    for training in (True, False):
        net = denoiser(kind, n_layers).train(training)
        graph, permuted = build_graph(weights, 4), build_graph(weights[:, order], 4)
        torch.testing.assert_close(
            net(weights, graph)[:, order], net(weights[:, order], permuted), rtol=1e-4, atol=1e-5
        )


@torch.no_grad()
def test_an_mlp_sees_each_class_alone() -> None:
    net = denoiser("mlp", 3).eval()
    weights = unit(torch.randn(1, 9, 7, generator=generator()))
    torch.testing.assert_close(net(weights)[:, 4:5], net(weights[:, 4:5]), rtol=1e-5, atol=1e-6)
    assert not any("message" in name for name in net.state_dict())


@torch.no_grad()
def test_a_gnn_reaches_as_far_as_it_has_layers() -> None:
    """On a path 0 → 1 → 2 → ..., class 0 depends on class k exactly where k ≤ number of layers."""
    N = 7
    graph = ClassGraph(torch.arange(1, N + 1).clamp(max=N - 1).view(1, N, 1), torch.zeros(1, N, 1))
    graph.neighbours[0, N - 1, 0] = 0
    weights = unit(torch.randn(1, N, 7, generator=generator()))
    for n_layers in (1, 2, 3, 4):
        net = denoiser("gnn", n_layers).eval()
        before = net(weights, graph)[0, 0]
        for k in range(1, N):
            moved = weights.clone()
            moved[0, k] = unit(torch.randn(7, generator=generator(8)))
            assert bool((net(moved, graph)[0, 0] != before).any()) == (k <= n_layers)


def test_dropout_and_initialisation_come_from_the_generators() -> None:
    weights = unit(torch.randn(1, 9, 7, generator=generator()))
    graph = build_graph(weights, 4)
    for dropout in (0.5, 0.9):
        net = denoiser("gnn", 2, dropout=dropout).train()
        first, again, other = (net(weights, graph, generator(s)) for s in (3, 3, 4))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    one, two, three = (Denoiser(7, 6, generator=generator(s)).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["layers.0.update.linear.weight"], three["layers.0.update.linear.weight"])


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    net = denoiser(kind, 3, dropout=0.9).train()
    weights = unit(torch.randn(3, 12, 7, generator=generator()))
    net(weights, build_graph(weights, 4), generator(1)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("message.linear.bias"):  # BatchNorm takes that one out again
            assert float(parameter.grad.abs().sum()) > 0, name


def test_bad_sizes_and_a_missing_graph() -> None:
    with pytest.raises(ModelError, match="at least 1 layer, got n_layers=0"):
        Denoiser(7, n_layers=0)
    with pytest.raises(ModelError, match="'gnn' or 'mlp', got 'rnn'"):
        Denoiser(7, kind="rnn")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="needs the class graph"):
        denoiser("gnn", 1)(torch.randn(1, 4, 7))
