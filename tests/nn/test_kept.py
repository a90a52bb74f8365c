"""Sparse dropout: its positions are independent coin flips, its messages those of a dense mask."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.nn.kept import kept_messages, sample_kept


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("p", [0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 17, 1000, 50_000])
def test_positions_ascend_and_stay_below_n(n: int, p: float) -> None:
    for seed in range(20):
        kept = sample_kept(n, p, generator(seed))
        assert kept.dtype == torch.int64
        assert bool((kept.diff() > 0).all())
        assert not len(kept) or (int(kept[0]) >= 0 and int(kept[-1]) < n)


def test_the_same_generator_gives_the_same_positions() -> None:
    first, again, other = (sample_kept(5000, 0.9, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("p", [0.8, 0.95, 0.9999])
def test_share_kept(p: float) -> None:
    """The number kept is binomial: mean n(1 - p), variance n p (1 - p)."""
    n, runs = 20_000, 400
    counts = torch.tensor([float(len(sample_kept(n, p, generator(s)))) for s in range(runs)]).double()
    deviation = math.sqrt(n * p * (1 - p))
    assert abs(float(counts.mean()) - n * (1 - p)) < 4 * deviation / math.sqrt(runs)
    assert float(counts.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * runs))


def test_every_position_is_as_likely() -> None:
    """First and last positions too: chi-square over 40 positions, 20,000 runs."""
    n, p, runs = 40, 0.9, 20_000
    source = generator(0)
    counts = torch.zeros(n)
    together = 0
    for _ in range(runs):
        kept = sample_kept(n, p, source)
        counts[kept] += 1
        together += int(len(kept) and bool(torch.isin(torch.tensor([7, 8]), kept).all()))
    expected = runs * (1 - p)
    chi_square = float(((counts - expected) ** 2 / (expected * p)).sum())
    assert abs(chi_square - n) < 4 * math.sqrt(2 * n)
    both = runs * (1 - p) ** 2
    assert abs(together - both) < 4 * math.sqrt(both)


def test_gaps_are_geometric_and_independent() -> None:
    p = 0.9
    gaps = sample_kept(2_000_000, p, generator(3)).diff().double()
    expected = [len(gaps) * (1 - p) * p ** (g - 1) for g in range(1, 31)]
    counts = [int((gaps == g).sum()) for g in range(1, 31)]
    chi_square = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    assert chi_square < 30 + 4 * math.sqrt(60)
    centred = gaps - gaps.mean()
    for lag in (1, 2, 5):
        correlation = float((centred[:-lag] * centred[lag:]).mean() / centred.var())
        assert abs(correlation) < 4 / math.sqrt(len(gaps))


def dense(nodes: Tensor, strengths: Tensor, rows: Tensor, kept: Tensor, p: float, slope: float) -> Tensor:
    """Every component computed, then masked: what dropout says it does."""
    R, J = rows.shape
    mask = torch.zeros(R * J * nodes.shape[1], dtype=nodes.dtype)
    mask[kept] = 1 / (1 - p)
    messages = []
    for i in range(R):
        total = torch.zeros_like(nodes[i])
        for j in range(J):
            q = F.leaky_relu(nodes[i] + nodes[rows[i, j]], slope)
            total = total + strengths[i, j] * q * mask.view(R, J, -1)[i, j]
        messages.append(total)
    return torch.stack(messages)


@pytest.mark.parametrize(("p", "slope"), [(0.5, 0.01), (0.9, 0.2)])
def test_messages_and_gradients_of_a_given_mask(p: float, slope: float) -> None:
    R, J, H = 9, 4, 6
    source = generator(0)
    nodes = torch.randn(R, H, dtype=torch.float64, generator=source).requires_grad_()
    strengths = torch.rand(R, J, dtype=torch.float64, generator=source)
    rows = torch.stack([torch.randperm(R, generator=source)[:J] for _ in range(R)])
    kept = sample_kept(R * J * H, p, source)
    assert 0 < len(kept) < R * J * H

    ours = kept_messages(nodes, strengths, rows, kept, p, slope)
    theirs = dense(nodes, strengths, rows, kept, p, slope)
    torch.testing.assert_close(ours, theirs)
    up = torch.randn(R, H, dtype=torch.float64, generator=source)
    torch.testing.assert_close(
        torch.autograd.grad((ours * up).sum(), nodes), torch.autograd.grad((theirs * up).sum(), nodes)
    )
    assert torch.autograd.gradcheck(lambda x: kept_messages(x, strengths, rows, kept, p, slope), (nodes,))
