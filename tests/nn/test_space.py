from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import ShrunkCovariance

from wdae.nn.space import FeatureSpace, powered, whitening


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


def spread_classes(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of different sizes whose images differ most along a few directions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0] * 9 + [1] * 20 + [2] * 14 + [4] * 7)  # class 3 has no image
    means = torch.randn(5, 6, generator=generator)
    noise = torch.randn(50, 6, generator=generator) * torch.tensor([4.0, 2.0, 1.0, 1.0, 0.5, 0.1])
    order = torch.randperm(50, generator=generator)
    return (means[labels] + noise)[order], labels[order]


def test_whitening_against_a_loop_over_images() -> None:
    rows, labels = spread_classes()
    covariance = np.zeros((6, 6))
    for row, label in zip(rows.double().numpy(), labels.tolist(), strict=True):
        off = row - rows[labels == label].double().numpy().mean(0)
        covariance += np.outer(off, off) / len(rows)
    found = whitening(rows, labels, (0.05, 0.5, 1.0))
    for shrink, got in found.items():
        shrunk = (1 - shrink) * covariance + shrink * np.trace(covariance) / 6 * np.eye(6)
        wanted = np.linalg.inv(shrunk) * np.trace(covariance) / 6
        np.testing.assert_allclose((got @ got).numpy(), wanted, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got, got.T)
    torch.testing.assert_close(found[1.0], torch.eye(6), atol=1e-6, rtol=0)


def test_nearest_means_after_whitening_are_linear_discriminant_analysis() -> None:
    rows, labels = spread_classes()
    queries = 2 * torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    known = labels.unique()
    means = torch.stack([rows[labels == c].mean(0) for c in known])
    whiten = whitening(rows, labels, (0.3,))[0.3]
    found = known[torch.cdist(queries @ whiten, means @ whiten).argmin(1)]
    pooled = rows - means[torch.searchsorted(known, labels)]
    covariance = ShrunkCovariance(shrinkage=0.3, assume_centered=True).fit(pooled.numpy()).covariance_
    directions = np.linalg.solve(covariance, means.numpy().T)
    scores = queries.numpy() @ directions - 0.5 * (means.numpy().T * directions).sum(0)
    assert (known.numpy()[scores.argmax(1)] == found.numpy()).all()


def test_a_whitened_space_and_images_that_are_all_alike() -> None:
    rows, labels = spread_classes()
    whiten = whitening(rows, labels, (0.4,))[0.4]
    space = FeatureSpace(0.7, 0.2 * rows.mean(0), torch.eye(6), 10.0, whiten, 0.4)
    wanted = (powered(rows, 0.7) - 0.2 * rows.mean(0)) @ whiten
    torch.testing.assert_close(space.features(rows), wanted / wanted.norm(dim=1, keepdim=True))
    assert space.to("cpu").whiten is not None and space.to("cpu").shrink == 0.4
    alike = whitening(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), (0.5,))[0.5]
    torch.testing.assert_close(alike, alike[0, 0] * torch.eye(3))
