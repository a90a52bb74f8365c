from __future__ import annotations

import math

import pytest
import torch

from wdae.nn.space import FeatureSpace, powered


@pytest.mark.parametrize("power", [1.0, 0.7, 0.5])
def test_features_of_a_space_against_plain_arithmetic(power: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, 6, generator=generator)
    centre = 0.3 * torch.randn(6, generator=generator)
    space = FeatureSpace(power, centre, torch.eye(6), 10.0)
    found = space.features(rows)
    for i in range(3):
        for j in range(4):
            row = [math.copysign(abs(x) ** power, x) for x in rows[i, j].tolist()]
            length = math.sqrt(sum(x * x for x in row))
            row = [x / length - c for x, c in zip(row, centre.tolist(), strict=True)]
            length = math.sqrt(sum(x * x for x in row))
            assert found[i, j].tolist() == pytest.approx([x / length for x in row], abs=1e-5)


def test_length_does_not_matter_and_zero_stays_zero() -> None:
    rows = torch.tensor([[0.5, -2.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(powered(rows, 0.5), powered(7 * rows, 0.5))
    assert powered(rows, 0.5)[1].tolist() == [0.0, 0.0, 0.0]
