"""PLDA against the normal distributions that define it."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from wdae.nn.plda import PLDA
from wdae.nn.space import means_by_class


def classes(n: int, images: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(n, 1, dim, generator=generator)
    rows = centres + 0.5 * torch.randn(n, images, dim, generator=generator)
    return rows.flatten(0, 1), torch.arange(n).repeat_interleave(images)


@pytest.mark.parametrize("settings", [(1.0, 0.1, False), (0.5, 0.5, True)])
def test_ratios_are_those_of_the_normal_distributions(settings: tuple[float, float, bool]) -> None:
    features, labels = classes(12, 10, 6)
    plda = PLDA.fit(features, labels, *settings)
    assert plda is not None
    vectors = plda.coordinates(features)
    means, counts = means_by_class(vectors, labels, 12)[:3], torch.tensor([1, 5, 200])
    found = plda.ratios(vectors[:4], means, counts)
    for i, vector in enumerate(vectors[:4]):
        for c, (mean, n) in enumerate(zip(means, counts.tolist(), strict=True)):
            precision = 1 / plda.between + n  # of the class's mean, after n examples
            expected, spread = n * mean / precision, (1 + 1 / precision).sqrt()
            inside = Normal(expected, spread).log_prob(vector).sum()
            anywhere = Normal(torch.zeros(6), (1 + plda.between).sqrt()).log_prob(vector).sum()
            assert float(found[i, c]) == pytest.approx(float(inside - anywhere), rel=1e-3, abs=1e-2)
            own = plda.own_ratios(vector, mean, n)
            assert float(own) == pytest.approx(float(inside - anywhere), rel=1e-3, abs=1e-2)


def test_vectors_of_a_class_are_likelier_in_it() -> None:
    features, labels = classes(10, 20, 16)
    plda = PLDA.fit(features[labels < 8], labels[labels < 8], 0.5, 0.5, True)
    assert plda is not None
    vectors = plda.coordinates(features[labels >= 8]).view(2, 20, -1)
    ratios = plda.ratios(vectors[:, 5:].flatten(0, 1), vectors[:, :5].mean(1), torch.tensor([5, 5]))
    own, other = ratios[:15], ratios[15:]
    assert bool((own[:, 0] > own[:, 1]).all()) and bool((other[:, 1] > other[:, 0]).all())
    assert float(own[:, 0].mean()) > 0 > float(own[:, 1].mean())


def test_too_little_to_fit() -> None:
    assert PLDA.fit(torch.eye(3), torch.arange(3), 1.0, 0.1, False) is None
    assert PLDA.fit(torch.eye(3), torch.zeros(3, dtype=torch.int64), 1.0, 0.1, False) is None


@pytest.mark.parametrize("n_classes", [4, 300])
def test_all_directions_are_found_without_a_matrix_of_all_pairs_of_classes(
    n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = torch.linalg.svd, []

    def noted(matrix: torch.Tensor, **options: bool) -> tuple[torch.Tensor, ...]:
        found = real(matrix, **options)
        sizes.append(found[0].numel())
        return found

    monkeypatch.setattr(torch.linalg, "svd", noted)
    plda = PLDA.fit(*classes(n_classes, 3, 8), 1.0, 0.1, False)
    assert plda is not None and plda.projection.shape == (8, 8)
    assert torch.linalg.matrix_rank(plda.projection) == 8
    assert max(sizes) <= 8 * n_classes
