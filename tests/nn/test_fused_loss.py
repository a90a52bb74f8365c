"""The end of a training step in one go, against the operations one by one and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wdae.nn import stage2_losses, unit
from wdae.nn.fused_loss import FusedLossInputs, fused_loss
from wdae.nn.layers import LastUpdate

E, N, Q, D = 7, 5, 6, 8


def inputs(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, FusedLossInputs]:
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype)

    mapped, scale = normal(E, N, 2 * D).requires_grad_(), torch.tensor(7.0, dtype=dtype, requires_grad=True)
    weights, targets, queries = unit(normal(E, N, D)), unit(normal(E, N, D)), unit(normal(E, Q, D))
    labels = torch.randint(0, N, (E, Q), generator=source)
    return mapped, scale, FusedLossInputs(weights, targets, queries, labels)


def one_by_one(mapped: Tensor, scale: Tensor, head: FusedLossInputs) -> tuple[Tensor, Tensor]:
    restored = LastUpdate([D], D).activate(head.weights, mapped)
    losses = stage2_losses(restored, head.targets, head.queries, head.labels, scale)
    accuracy = (losses.scores.argmax(-1) == head.labels).to(mapped.dtype).mean()
    total = head.reconstruction * losses.reconstruction + head.classification * losses.classification
    return total, torch.stack([losses.reconstruction, losses.classification, accuracy]).detach()


@pytest.mark.parametrize(("reconstruction", "classification"), [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_values_and_gradients(
    reconstruction: float, classification: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wdae.nn.fused_loss._EPISODES", at_once)
    mapped, scale, head = inputs()
    head = FusedLossInputs(
        head.weights, head.targets, head.queries, head.labels, reconstruction, classification
    )
    total, values = fused_loss(mapped, scale, head)
    expected, expected_values = one_by_one(mapped, scale, head)
    # cross-entropy in stage2_losses is float32 whatever comes in
    torch.testing.assert_close(total, expected.double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values, expected_values.double(), rtol=1e-6, atol=1e-6)
    ours = torch.autograd.grad(3.0 * total, [mapped, scale])
    theirs = torch.autograd.grad(3.0 * expected, [mapped, scale], allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, rtol=1e-5, atol=1e-7)


def test_against_finite_differences() -> None:
    mapped, scale, head = inputs()
    assert torch.autograd.gradcheck(lambda m, s: fused_loss(m, s, head)[0], (mapped, scale))


def test_inputs_stay_as_they_are_and_values_carry_no_gradient() -> None:
    mapped, scale, head = inputs(torch.float32)
    before = [x.detach().clone() for x in (mapped, head.weights, head.targets, head.queries)]
    total, values = fused_loss(mapped, scale, head)
    assert total.requires_grad
    assert not values.requires_grad
    for x, y in zip((mapped, head.weights, head.targets, head.queries), before, strict=True):
        assert torch.equal(x, y)


def test_bfloat16_products() -> None:
    """As in training: the map and the queries in bfloat16, everything else in float32."""
    mapped, scale, head = inputs(torch.float32)
    rough = mapped.detach().bfloat16().requires_grad_()
    head16 = FusedLossInputs(head.weights, head.targets, head.queries.bfloat16(), head.labels)
    total, _ = fused_loss(rough, scale, head16)
    expected, _ = one_by_one(mapped, scale, head)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected, rtol=2e-2, atol=0)
    (ours,) = torch.autograd.grad(total, rough)
    (theirs,) = torch.autograd.grad(expected, mapped)
    assert ours.dtype == torch.bfloat16
    assert float((ours - theirs).norm()) < 0.03 * float(theirs.norm())


def test_the_number_of_threads_changes_nothing() -> None:
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            mapped, scale, head = inputs(torch.float32)
            total, values = fused_loss(mapped, scale, head)
            results.append([total, values, *torch.autograd.grad(total, [mapped, scale])])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
