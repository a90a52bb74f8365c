"""Classes with differing numbers of shots in ``benchmarks/mixed_shots.py``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from wdae.synthetic import synthetic_bank

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MIX = (1, 1, 3, 8, 8)


@pytest.fixture
def mixed_shots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = pytest.importorskip("mixed_shots")
    monkeypatch.setattr(module, "BASE_QUERIES", 20)
    monkeypatch.setattr(module, "_MOST", 8)
    return module


def test_rivals_of_equal_shots_are_those_of_the_other_benchmark(mixed_shots: ModuleType) -> None:
    bank = synthetic_bank(12, 4, 8, 30, 8, seed=0, held_out_per_class=10)
    unequal, equal = mixed_shots.UnequalRivals(bank), mixed_shots.Rivals(bank)
    found = unequal.of_any_shots()
    shots, queries = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)), bank.features[:9]
    for name, method in equal.all().items():
        if name in found:
            torch.testing.assert_close(found[name](list(shots), queries), method(shots, queries))


def test_classes_of_a_number_of_shots_are_counted_together(mixed_shots: ModuleType) -> None:
    bank = synthetic_bank(12, 4, 8, 30, 8, seed=0, held_out_per_class=10)
    draws, rivals = mixed_shots.Draws(bank, 2), mixed_shots.UnequalRivals(bank).of_any_shots()
    assert len(rivals) == 3
    given: list[list[int]] = []

    def nearest(shots: mixed_shots.Examples, queries: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        given.append([len(rows) for rows in shots])
        return torch.as_tensor(rivals["nearest mean"](shots, queries))

    found = {mixed_shots.OURS: draws.turns(nearest, MIX)}
    assert given == [list(MIX)] * 2
    found |= {"the same": found[mixed_shots.OURS]}
    equal = {k: draws.turns(nearest, (k,) * 5) for k in (1, 3, 8)}
    ours, same = mixed_shots.rows_of(found, equal, MIX)
    by_shots = {k: value["mean"] for k, value in ours["by_shots"].items()}
    assert list(by_shots) == ["1", "3", "8"]
    whole = (2 * by_shots["1"] + by_shots["3"] + 2 * by_shots["8"]) / 5
    assert whole == pytest.approx(ours["novel_at_loss_of_ours"]["mean"])
    assert same["ours_beyond"]["area"]["mean"] == 0
    wanted = mixed_shots.by_class(equal[8], 0.0)[:, 3:].mean()
    assert ours["by_shots_where_equal"]["8"]["mean"] == pytest.approx(float(wanted))
