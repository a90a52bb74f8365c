"""Sparse dropout: its positions are independent coin flips, its messages those of a dense mask."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from seeded import generator
from torch import Tensor

from wdae.nn.sparse_dropout import groups, sample_group_survivors, sample_survivors, sparse_messages


@pytest.mark.parametrize("p", [0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 17, 1000, 50_000])
def test_positions_ascend_and_stay_below_n(n: int, p: float) -> None:
    for seed in range(20):
        kept = sample_survivors(n, p, generator(seed))
        assert kept.dtype == torch.int64
        assert bool((kept.diff() > 0).all())
        assert not len(kept) or (int(kept[0]) >= 0 and int(kept[-1]) < n)


def test_the_same_generator_gives_the_same_positions() -> None:
    first, again, other = (sample_survivors(5000, 0.9, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("p", [0.8, 0.95, 0.9999])
def test_share_kept(p: float) -> None:
    """The number kept is binomial: mean n(1 - p), variance n p (1 - p)."""
    n, runs = 20_000, 400
    counts = torch.tensor([float(len(sample_survivors(n, p, generator(s)))) for s in range(runs)]).double()
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
        kept = sample_survivors(n, p, source)
        counts[kept] += 1
        together += int(len(kept) and bool(torch.isin(torch.tensor([7, 8]), kept).all()))
    expected = runs * (1 - p)
    chi_square = float(((counts - expected) ** 2 / (expected * p)).sum())
    assert abs(chi_square - n) < 4 * math.sqrt(2 * n)
    both = runs * (1 - p) ** 2
    assert abs(together - both) < 4 * math.sqrt(both)


def test_gaps_are_geometric_and_independent() -> None:
    p = 0.9
    gaps = sample_survivors(2_000_000, p, generator(3)).diff().double()
    expected = [len(gaps) * (1 - p) * p ** (g - 1) for g in range(1, 31)]
    counts = [int((gaps == g).sum()) for g in range(1, 31)]
    chi_square = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    assert chi_square < 30 + 4 * math.sqrt(60)
    centred = gaps - gaps.mean()
    for lag in (1, 2, 5):
        correlation = float((centred[:-lag] * centred[lag:]).mean() / centred.var())
        assert abs(correlation) < 4 / math.sqrt(len(gaps))


def dense(nodes: Tensor, strengths: Tensor, neighbours: Tensor, mask: Tensor, slope: float) -> Tensor:
    """Every component computed, then masked: what dropout says it does."""
    E, N, J = neighbours.shape
    messages = []
    for e in range(E):
        for i in range(N):
            total = torch.zeros_like(nodes[e, i])
            for j in range(J):
                q = F.leaky_relu(nodes[e, i] + nodes[e, int(neighbours[e, i, j])], slope)
                total = total + strengths[e, i, j] * q * mask[e, i, j]
            messages.append(total)
    return torch.stack(messages).view_as(nodes)


def as_mask(kept: list[Tensor], shape: tuple[int, int, int, int], p: float) -> Tensor:
    """The mask ``[E, N, J, H]`` that dropout would have drawn."""
    E, N, J, H = shape
    masks = []
    for group, positions in zip(groups(E, N * J * H), kept, strict=True):
        mask = torch.zeros(J, group.stop - group.start, N, H, dtype=torch.float64)
        mask.view(-1)[positions] = 1 / (1 - p)
        masks.append(mask.permute(1, 2, 0, 3))
    return torch.cat(masks)


@pytest.mark.parametrize(("p", "slope"), [(0.5, 0.01), (0.9, 0.2)])
@pytest.mark.parametrize("group", [1, 2 * 9 * 4 * 6, 1 << 20])
def test_messages_and_gradients_of_a_given_mask(
    p: float, slope: float, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes one by one, in twos (with one left over), and all at once."""
    monkeypatch.setattr("wdae.nn.sparse_dropout._GROUP", group)
    E, N, J, H = 3, 9, 4, 6
    source = generator(0)
    nodes = torch.randn(E, N, H, dtype=torch.float64, generator=source).requires_grad_()
    strengths = torch.rand(E, N, J, dtype=torch.float64, generator=source)
    neighbours = torch.stack([torch.randperm(N, generator=source)[:J] for _ in range(E * N)]).view(E, N, J)
    kept = sample_group_survivors(E, N * J * H, p, source)
    assert 0 < sum(map(len, kept)) < E * N * J * H

    ours = sparse_messages(nodes, strengths, neighbours, kept, p, slope)
    theirs = dense(nodes, strengths, neighbours, as_mask(kept, (E, N, J, H), p), slope)
    torch.testing.assert_close(ours, theirs)
    up = torch.randn(E, N, H, dtype=torch.float64, generator=source)
    torch.testing.assert_close(
        torch.autograd.grad((ours * up).sum(), nodes), torch.autograd.grad((theirs * up).sum(), nodes)
    )
    assert torch.autograd.gradcheck(
        lambda x: sparse_messages(x, strengths, neighbours, kept, p, slope), (nodes,)
    )


def test_groups_draw_apart_from_each_other_and_from_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdae.nn.sparse_dropout._GROUP", 3000)
    assert groups(7, 1000) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert groups(2, 5000) == [slice(0, 1), slice(1, 2)]
    draws = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            draws.append(sample_group_survivors(7, 1000, 0.9, generator(5)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for again in draws[1:]:
        assert all(torch.equal(a, b) for a, b in zip(draws[0], again, strict=True))
    first, second, _ = draws[0]
    assert not torch.equal(first, second)
    other = sample_group_survivors(7, 1000, 0.9, generator(6))
    assert not torch.equal(first, other[0])
