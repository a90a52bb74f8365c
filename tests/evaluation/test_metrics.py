"""Accuracies against a loop over queries that ranks classes by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wdae.evaluation.metrics import hits, joint_accuracy, joint_hits, novel_accuracy, with_prior


def case(E: int, Q: int, n_base: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_base + n, (E, Q), generator=source)
    labels[:, 0], labels[:, 1] = 0, n_base  # both kinds in every episode
    scores = 3 * torch.randn(E, Q, n_base + n, generator=source)
    scores.scatter_add_(2, labels.unsqueeze(-1), torch.full((E, Q, 1), 3.0))
    return scores, labels


def rank(scores: list[float], among: range, label: int) -> int:
    """How many of the classes score higher."""
    return sum(scores[c] > scores[label] for c in among)


def prior(scores: list[float], n_base: int) -> list[float]:
    """Probabilities: a softmax over each kind apart, base weighed 0.2 and novel 0.8."""
    powers = [math.exp(s) for s in scores]
    base, novel = sum(powers[:n_base]), sum(powers[n_base:])
    return [0.2 * p / base if c < n_base else 0.8 * p / novel for c, p in enumerate(powers)]


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


def oracle(scores: Tensor, labels: Tensor, n_base: int, top: int) -> dict[str, float]:
    """One episode."""
    C = scores.shape[-1]
    everything = range(C)
    right: dict[str, list[bool]] = {
        k: [] for k in ("novel", "base", "all", "all_prior", "novel_in_all", "base_in_all")
    }
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        in_all = rank(row, everything, label) < top
        if label >= n_base:
            right["novel"].append(rank(row, range(n_base, C), label) < top)
            right["novel_in_all"].append(in_all)
        else:
            right["base"].append(rank(row, range(n_base), label) < top)
            right["base_in_all"].append(in_all)
        right["all"].append(in_all)
        right["all_prior"].append(rank(prior(row, n_base), everything, label) < top)
    values = {name: share(list_) for name, list_ in right.items()}
    a, b = values["novel_in_all"], values["base_in_all"]
    values["harmonic"] = 0.0 if a + b == 0 else 2 * a * b / (a + b)
    return values


@pytest.mark.parametrize(("n_base", "n"), [(20, 5), (20, 8), (3, 9), (1, 2)])
def test_joint_accuracies(n_base: int, n: int) -> None:
    scores, labels = case(6, 40, n_base, n)
    before = scores.clone()
    values = joint_accuracy(joint_hits(scores, labels, n_base), labels >= n_base)
    assert torch.equal(scores, before)
    for suffix, top in (("", 1), ("_top5", 5)):
        if suffix and n <= 5:  # among five classes everything is right
            assert not any(name.endswith("_top5") for name in values)
            continue
        for e in range(6):
            for name, expected in oracle(scores[e], labels[e], n_base, top).items():
                assert float(values[name + suffix][e]) == pytest.approx(expected, abs=1e-6), name + suffix
    assert all(v.shape == (6,) and bool(v.isfinite().all()) for v in values.values())


def test_novel_accuracy() -> None:
    scores, _ = case(5, 30, 0, 8)
    labels = torch.randint(0, 8, (5, 30), generator=torch.Generator().manual_seed(1))
    values = novel_accuracy(scores, labels)
    for suffix, top in (("", 1), ("_top5", 5)):
        for e in range(5):
            ranks = [
                rank(s, range(8), t) for s, t in zip(scores[e].tolist(), labels[e].tolist(), strict=True)
            ]
            assert float(values["novel" + suffix][e]) == pytest.approx(share([r < top for r in ranks]))
    assert set(novel_accuracy(scores[..., :5], labels % 5)) == {"novel"}


def test_joint_novel_is_the_novel_only_accuracy() -> None:
    scores, _ = case(4, 20, 10, 7)
    labels = 10 + torch.randint(0, 7, (4, 20), generator=torch.Generator().manual_seed(1))
    labels[:, 0] = 0
    joint = joint_accuracy(joint_hits(scores, labels, 10), labels >= 10)
    alone = novel_accuracy(scores[:, 1:, 10:], labels[:, 1:] - 10)
    torch.testing.assert_close(joint["novel"], alone["novel"])
    torch.testing.assert_close(joint["novel_top5"], alone["novel_top5"])


def test_nothing_right_has_a_harmonic_mean_of_zero() -> None:
    scores = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    values = joint_accuracy(joint_hits(scores, torch.tensor([[1, 2]]), 2), torch.tensor([[False, True]]))
    assert float(values["harmonic"]) == 0.0


def test_prior_sums_to_one_and_weighs_the_kinds() -> None:
    scores, _ = case(2, 9, 6, 4)
    probabilities = with_prior(scores, 6).exp()
    torch.testing.assert_close(probabilities[..., :6].sum(-1), torch.full((2, 9), 0.2))
    torch.testing.assert_close(probabilities[..., 6:].sum(-1), torch.full((2, 9), 0.8))
    for e, q in ((0, 0), (1, 8)):
        assert probabilities[e, q].tolist() == pytest.approx(prior(scores[e, q].tolist(), 6), abs=1e-6)


def test_top_k_of_fewer_than_k_classes() -> None:
    assert bool(hits(torch.randn(1, 4, 3), torch.tensor([[0, 1, 2, 0]]), 5).all())
