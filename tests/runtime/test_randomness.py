from __future__ import annotations

import math

import pytest
import torch

from wdae.runtime.randomness import derive_seed, integers, uniform

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The published generator on Python's integers, as oracle for the wrapped arithmetic on tensors."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_against_splitmix64_on_whole_numbers() -> None:
    values = uniform(5, 2, 3, (4, 3), "cpu").flatten().tolist()
    key = derive_seed(5, 2)
    for i, value in enumerate(values, start=9):
        assert value == (splitmix64(i * 0x9E3779B97F4A7C15 + key) >> 11) * 2.0**-53


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_rows_do_not_depend_on_how_many_are_asked_for(chunk: int) -> None:
    whole = uniform(1, 0, 0, (100, 4, 3), "cpu")
    parts = [uniform(1, 0, s, (min(chunk, 100 - s), 4, 3), "cpu") for s in range(0, 100, chunk)]
    assert torch.equal(torch.cat(parts), whole)
    bounds = torch.arange(1, 401).view(100, 4)
    pieces = [integers(1, 0, s, bounds[s : s + chunk]) for s in range(0, 100, chunk)]
    assert torch.equal(torch.cat(pieces), integers(1, 0, 0, bounds))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_on_every_device() -> None:
    here, there = (uniform(1, 2, 3, (50, 20), device) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
    bounds = torch.arange(1, 401).view(100, 4)
    assert torch.equal(integers(1, 0, 9, bounds), integers(1, 0, 9, bounds.cuda()).cpu())


def test_uniform_is_uniform() -> None:
    """Chi-square over 100 bins; neighbours in the sequence do not inform each other."""
    n, bins = 200_000, 100
    values = uniform(0, 0, 0, (n,), "cpu")
    assert values.dtype == torch.float64
    assert float(values.min()) >= 0.0
    assert float(values.max()) < 1.0
    counts = torch.histc(values, bins, 0, 1)
    chi_square = float(((counts - n / bins) ** 2 / (n / bins)).sum())
    assert abs(chi_square - (bins - 1)) < 4 * math.sqrt(2 * (bins - 1))
    for lag in (1, 2, 64):
        product = (values[:-lag] - 0.5) * (values[lag:] - 0.5)
        assert abs(float(product.mean())) < 4 / 12 / math.sqrt(n)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 37])
def test_integers_are_uniform_below_their_bound(bound: int) -> None:
    n = 50_000
    values = integers(3, 1, 0, torch.full((n,), bound))
    counts = torch.bincount(values, minlength=bound)
    assert len(counts) == bound
    chi_square = float(((counts - n / bound) ** 2 / (n / bound)).sum())
    assert chi_square <= (bound - 1) + 4 * math.sqrt(2 * (bound - 1))


def test_a_huge_bound_is_never_reached() -> None:
    bounds = torch.full((20_000,), 2**62)
    values = integers(0, 0, 0, bounds)
    assert bool(((values >= 0) & (values < bounds)).all())


def test_streams_and_seeds_are_distinct() -> None:
    draws = [uniform(seed, stream, 0, (5000,), "cpu") for seed in range(6) for stream in range(6)]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            correlation = float(((a - 0.5) * (b - 0.5)).mean()) * 12
            assert abs(correlation) < 5 / math.sqrt(5000)
            assert not torch.isin(a[:200], b).any()


def test_derived_seeds() -> None:
    seeds = {derive_seed(s, name, i) for s in range(5) for name in ("noise", "episodes") for i in range(50)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, "a") != derive_seed(1, "b") != derive_seed(1)
    assert derive_seed(7, "step", 1) == 6145048196654063043  # fixed for good: runs are repeated by it
