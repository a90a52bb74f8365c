"""Layers against per-edge loops through torch's own BatchNorm."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from seeded import generator
from torch import Tensor, nn

from wdae.nn import build_graph, edge_norm, unit
from wdae.nn.graph import ClassGraph
from wdae.nn.layers import HiddenUpdate, LastUpdate, PairwiseMessage, dropout
from wdae.nn.sparse_dropout import sample_group_survivors
from wdae.nn.split_linear import SplitLinear, part_scales


def state(sizes: list[int], E: int = 3, N: int = 13, seed: int = 0) -> tuple[list[Tensor], ClassGraph]:
    source = generator(seed)
    parts = [unit(torch.randn(E, N, size, generator=source)).requires_grad_() for size in sizes]
    return parts, build_graph(parts[0].detach(), 4)


def shaken(module: nn.Module, seed: int = 1) -> nn.Module:
    """Parameters and running statistics away from where BatchNorm starts."""
    source = generator(seed)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=source)
            tensor.copy_(0.5 + noise.abs() if name.endswith(("var", "norm.weight")) else 0.5 * noise)
    return module


def concatenated(parts: list[Tensor]) -> Tensor:
    """``h`` as the method states it: append and divide by √2, again and again."""
    h = parts[0]
    for u in parts[1:]:
        h = torch.cat([h, u], dim=-1) / 2**0.5
    return h


def message_by_edges(
    message: PairwiseMessage,
    norm: nn.BatchNorm1d,
    parts: list[Tensor],
    graph: ClassGraph,
    mask: Tensor | None,
) -> Tensor:
    """Eq. 9, one edge at a time; BatchNorm sees all edges of all episodes as one batch."""
    h = concatenated(parts)
    E, N, J = graph.neighbours.shape
    edges = []
    for e in range(E):
        for i in range(N):
            for j in range(J):
                k = int(graph.neighbours[e, i, j])
                ends = (F.linear(h[e, x], message.linear.weight, message.linear.bias) for x in (i, k))
                edges.append(sum(ends))
    normed = norm(torch.stack(edges))  # [E·N·J, H]
    if mask is not None:
        normed = normed * mask.view_as(normed)
    q = F.leaky_relu(normed, 0.01).view(E, N, J, -1)
    return torch.stack(
        [
            torch.stack([sum(graph.strengths[e, i, j] * q[e, i, j] for j in range(J)) for i in range(N)])
            for e in range(E)
        ]
    )


def gradients(
    out: Tensor, module: nn.Module, parts: list[Tensor], extra: list[Tensor] | None = None
) -> list[Tensor]:
    up = torch.randn(out.shape, generator=generator(9))
    grads = torch.autograd.grad((out * up).sum(), [*module.parameters(), *parts, *(extra or [])])
    return list(grads)


@pytest.mark.parametrize("sizes", [[6], [6, 5], [6, 5, 5]])
@pytest.mark.parametrize("dense_classes", [1024, 0])
def test_message_in_training_mode(
    sizes: list[int], dense_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, gradients and running statistics, with and without the adjacency matrix."""
    monkeypatch.setattr(edge_norm, "DENSE_CLASSES", dense_classes)
    parts, graph = state(sizes)
    message = shaken(PairwiseMessage(sizes, 5, 0.0)).train()
    theirs = copy.deepcopy(message)
    norm = theirs.norm
    ours = message(parts, graph.neighbours, graph.strengths)
    slow = message_by_edges(theirs, norm, parts, graph, None)
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-5)
    for a, b in zip(gradients(ours, message, parts), gradients(slow, theirs, parts), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(message.norm, name), getattr(norm, name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [[6], [6, 5, 5]])
def test_message_in_evaluation_mode(sizes: list[int]) -> None:
    parts, graph = state(sizes)
    message = shaken(PairwiseMessage(sizes, 5, 0.9)).eval()  # dropout is off in evaluation
    before = copy.deepcopy(message.state_dict())
    ours = message(parts, graph.neighbours, graph.strengths)
    torch.testing.assert_close(
        ours, message_by_edges(message, message.norm, parts, graph, None), rtol=1e-4, atol=1e-5
    )
    assert all(torch.equal(before[k], v) for k, v in message.state_dict().items())


def test_message_with_sparse_dropout() -> None:
    """At the paper's ratio the kept positions are drawn first: the same mask, edge by edge, is equal."""
    p, H = 0.9, 40
    parts, graph = state([6, 5])
    message = shaken(PairwiseMessage([6, 5], H, p)).train()
    theirs = copy.deepcopy(message)
    ours = message(parts, graph.neighbours, graph.strengths, generator(4))
    E, N, J = graph.neighbours.shape
    (kept,) = sample_group_survivors(E, N * J * H, p, generator(4))  # so few episodes are one group
    mask = torch.zeros(J, E, N, H)
    mask.view(-1)[kept] = 1 / (1 - p)
    mask = mask.permute(1, 2, 0, 3).contiguous()
    slow = message_by_edges(theirs, theirs.norm, parts, graph, mask)
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(ours, message, parts), gradients(slow, theirs, parts), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("p", [0.5, 0.95])
def test_dropout_of_messages_keeps_the_mean(p: float) -> None:
    """Both paths (mask, sparse) have the undropped message as their mean and draw from the generator."""
    parts, graph = state([6], E=1)
    message = shaken(PairwiseMessage([6], 8, p)).train()
    with torch.no_grad():
        draws = torch.stack(
            [message(parts, graph.neighbours, graph.strengths, generator(s)) for s in range(800)]
        )
        again = message(parts, graph.neighbours, graph.strengths, generator(0))
        message.dropout = 0.0
        whole = message(parts, graph.neighbours, graph.strengths)
    assert torch.equal(draws[0], again)
    error = (draws.mean(0) - whole).abs()
    assert bool((error < 5 * draws.std(0) / 800**0.5 + 1e-6).all())


def test_dropout_of_units() -> None:
    x = torch.ones(200, 500)
    out = dropout(x, 0.8, generator(1))
    assert out.unique().tolist() == pytest.approx([0.0, 5.0])
    assert float((out > 0).float().mean()) == pytest.approx(0.2, abs=0.005)
    assert torch.equal(out, dropout(x, 0.8, generator(1)))
    assert dropout(x, 0.0, None) is x


@pytest.mark.parametrize("n_parts", [1, 2, 3, 4, 7])
def test_part_scales_keep_unit_length(n_parts: int) -> None:
    scales = part_scales(n_parts)
    assert sum(s**2 for s in scales) == pytest.approx(1)
    ones = [torch.ones(1) for _ in range(n_parts)]
    assert scales == pytest.approx(concatenated(ones).tolist())


@pytest.mark.parametrize("with_message", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_hidden_update(with_message: bool, training: bool) -> None:
    parts, _ = state([6, 5])
    m = torch.randn(3, 13, 4, generator=generator(2)).requires_grad_() if with_message else None
    update = shaken(HiddenUpdate([6, 5, 4] if with_message else [6, 5], 5, 0.0)).train(training)
    theirs = copy.deepcopy(update)
    ours = update(parts, m)
    h = concatenated(parts)
    h = h if m is None else torch.cat([h, m], dim=-1)
    mapped = h @ theirs.linear.weight.T
    slow = unit(F.leaky_relu(theirs.norm(mapped.reshape(-1, 5)).view(3, 13, 5), 0.01))
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-5)
    extra = [] if m is None else [m]
    for a, b in zip(
        gradients(ours, update, parts, extra), gradients(slow, theirs, parts, extra), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(update.norm.running_var, theirs.norm.running_var)
    assert update.linear.bias is None


def test_last_update() -> None:
    parts, _ = state([6, 5])
    m = torch.randn(3, 13, 4, generator=generator(2))
    update = shaken(LastUpdate([6, 5, 4], 6))
    ours = update(parts[0], parts, m)
    mapped = torch.cat([concatenated(parts), m], dim=-1) @ update.linear.weight.T + update.linear.bias
    delta, gate = mapped[..., :6], mapped[..., 6:]
    slow = parts[0] + 1 / (1 + torch.exp(-gate)) * delta / delta.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_split_linear_is_the_map_of_the_concatenation(bias: bool, fixed: int) -> None:
    """Values and gradients, where the first parts need none (as the input weights) or all do."""
    parts, _ = state([6, 5, 4])
    parts = [part.detach().requires_grad_(k >= fixed) for k, part in enumerate(parts)]
    linear = shaken(SplitLinear([6, 5, 4], 7, bias))
    scales = [0.5, 1.0, 2.0]
    ours = linear.apply_parts(parts, scales)
    joined = torch.cat([s * part for s, part in zip(scales, parts, strict=True)], dim=-1)
    theirs = F.linear(joined, linear.weight, linear.bias)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        gradients(ours, linear, parts[fixed:]), gradients(theirs, linear, parts[fixed:]), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_split_linear_under_autocast() -> None:
    """Products in bfloat16, gradients in the dtypes of what they belong to."""
    parts, _ = state([6, 5])
    linear = shaken(SplitLinear([6, 5], 7))
    exact = linear.apply_parts(parts, [1.0, 0.5])
    with torch.autocast("cpu", torch.bfloat16):
        rough = linear.apply_parts([parts[0].bfloat16(), parts[1]], [1.0, 0.5])
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.05)
    for a, b in zip(gradients(rough, linear, parts), gradients(exact, linear, parts), strict=True):
        assert a.dtype == torch.float32
        assert float((a - b).norm()) < 0.03 * float(b.norm())
