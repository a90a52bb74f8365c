"""What single methods promise beyond the shared checks, against slow and obvious loops."""

from __future__ import annotations

import math

import pytest
import torch
from method_samples import bank_of, fresh
from seeded import randn

from wdae.methods import BaseClasses, Setting, Support, find, make, names
from wdae.methods.base import base_classes
from wdae.methods.baselines.attention_lstm import AttentionLSTM
from wdae.methods.baselines.lwof import LwofAttention
from wdae.methods.baselines.prototypical import Prototypical
from wdae.methods.examples import add_hallucinated
from wdae.methods.fitted.logistic import LogisticRegressionH
from wdae.methods.learned import LearnedMethod
from wdae.nn.cosine import unit
from wdae.nn.inner_loop import gradient_steps
from wdae.parts import Part

E, N, n, K, D = 3, 7, 4, 2, 10


SUPPORT, QUERIES, BASE = Support(randn(E, n, K, D)), randn(E, 5, D, seed=1), BaseClasses(randn(N, D, seed=2))
# Those that start exactly, or all but, as nearest mean by cosine.
NEAREST_MEAN = [
    "prototypical",
    "lwof-average",
    "activations",
    "relation-cosine",
    "prototype-matching-h",
    "fine-tune",
]


def test_lwof_leaves_out_base_classes_that_play_novel() -> None:
    method = LwofAttention(Setting(D, N), attention_gain=1.0)
    present = torch.tensor([[0, 2, 3, 6]]).expand(E, -1)
    some = BaseClasses(BASE.weights[present], classes=present)
    novel = method.novel_weights(SUPPORT, some).detach()
    for e in range(E):
        for c in range(n):
            total = torch.zeros(D)
            for k in range(K):
                z = unit(SUPPORT.features[e, c, k])
                scores = torch.stack([10 * torch.dot(z, unit(method.keys[b])) for b in (0, 2, 3, 6)])
                shares = torch.softmax(scores, 0).detach()
                read = sum(s * unit(BASE.weights[b]) for s, b in zip(shares, (0, 2, 3, 6), strict=True))
                total += z / K + read / K
            torch.testing.assert_close(novel[e, c], total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NEAREST_MEAN)
def test_it_starts_as_nearest_mean(name: str) -> None:
    kind = find(name)
    method = make(name, dim=D, n_base=N) if issubclass(kind, LearnedMethod) else make(name, n_steps=0)
    if isinstance(method, LearnedMethod):
        method.eval()
    shots = Support(unit(SUPPORT.features))
    with torch.no_grad():
        scores = method.adapt(shots, BASE)(QUERIES)
        expected = make("initial-estimate").adapt(shots, BASE)(QUERIES)
    assert torch.equal(scores.argsort(-1), expected.argsort(-1))


def test_leo_without_steps_is_nearest_mean_along_principal_directions() -> None:
    bank = bank_of("easy")
    pool = bank.select(Part.BASE_TRAIN)
    support, queries = Support(randn(E, n, K, bank.dim)), randn(E, 5, bank.dim, seed=1)
    for latent in (4, bank.dim):
        options = {"latent": latent, "n_steps": 0, "n_fine_steps": 0}
        method = make("leo", dim=bank.dim, n_base=bank.n_base, scale=10.0, **options)
        assert isinstance(method, LearnedMethod)
        method.prepare(base_classes(bank), pool, torch.Generator())
        _, _, right = torch.linalg.svd(pool.features, full_matrices=False)
        keep = right[:latent].T @ right[:latent]  # onto the directions along which features are longest
        means = unit(support.features).mean(2) @ keep
        with torch.no_grad():
            scores = method.eval().adapt(support, BaseClasses(randn(bank.n_base, bank.dim)))(queries)
        expected = 10.0 * unit(queries) @ means.transpose(1, 2)
        torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("unit_length", [False, True])
def test_prototypes_against_distances(unit_length: bool) -> None:
    method = Prototypical(Setting(D, N, scale=3.0), unit_length)
    scores = method.adapt(SUPPORT, BASE)(QUERIES).detach()
    centres = unit(SUPPORT.features.mean(2)) if unit_length else SUPPORT.features.mean(2)
    distance = (QUERIES.unsqueeze(2) - centres.unsqueeze(1)).square().sum(-1)
    expected = torch.log_softmax(-1.5 * distance, -1)
    torch.testing.assert_close(torch.log_softmax(scores, -1), expected, rtol=1e-3, atol=1e-4)


def test_matching_is_a_mean_of_labels() -> None:
    method = make("matching", dim=D, n_base=N, scale=16.0, full_context=False)
    with torch.no_grad():
        scores = method.adapt(SUPPORT, BASE)(QUERIES)
    for e in range(E):
        for q in range(5):
            mass = torch.zeros(n)
            for c in range(n):
                for k in range(K):
                    cosine = torch.dot(unit(QUERIES[e, q]), unit(SUPPORT.features[e, c, k]))
                    mass[c] += math.exp(4.0 * cosine)
            torch.testing.assert_close(
                torch.softmax(scores[e, q], 0), mass / mass.sum(), rtol=1e-4, atol=1e-5
            )


def test_the_context_reads_a_set() -> None:
    context = AttentionLSTM(D, 6, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(context.expand.weight, generator=torch.Generator().manual_seed(1))
    members = randn(E, 6, D, seed=3)
    with torch.no_grad():
        whole = context(QUERIES, members)
        torch.testing.assert_close(context(QUERIES, members.flip(1)), whole, rtol=1e-4, atol=1e-5)
        padded = torch.cat([members, 5 * randn(E, 2, D, seed=4)], dim=1)
        mask = (torch.arange(8) < 6).expand(E, -1)
        torch.testing.assert_close(context(QUERIES, padded, mask), whole, rtol=1e-4, atol=1e-5)


def test_first_and_second_order_take_the_same_steps_and_differ_in_gradients() -> None:
    start, rate = randn(2, 3, seed=5), torch.tensor(0.1, requires_grad=True)
    ends, grads = [], []
    for second_order in (False, True):
        leaf = start.clone().requires_grad_()
        (end,) = gradient_steps(
            lambda x: (x**4).sum(), [leaf], [rate] * 3, training=True, second_order=second_order
        )
        ends.append(end.detach())
        grads.append(torch.autograd.grad(end.sum(), leaf)[0])
    torch.testing.assert_close(ends[0], ends[1])
    assert torch.equal(grads[0], torch.ones(2, 3))  # the steps count as constants
    x, factor = start.clone(), torch.ones(2, 3)
    for _ in range(3):
        factor *= 1 - 0.1 * 12 * x**2
        x = x - 0.1 * 4 * x**3
    torch.testing.assert_close(grads[1], factor)


def test_analogies_transform_every_shot_alike() -> None:
    made = randn(E, n, K, 3, D)
    mask = torch.ones(E, n, K, dtype=torch.bool)
    mask[:, 0, 1] = False  # one shot and three made from it, against two shots and one made from each
    grown = add_hallucinated(Support(SUPPORT.features, mask), made, wanted=4)
    assert grown.features.shape == (E, n, K * 4, D)
    assert grown.mask is not None
    assert grown.mask[0, 0].tolist() == [True, False] + [True] * 3 + [False] * 3
    assert grown.mask[0, 1].tolist() == [True, True] + [True, False, False] * 2
    assert grown.shots[0].tolist() == [4] * n


def test_centroids_lie_in_their_class() -> None:
    bank = bank_of("easy")
    method = fresh("logistic-regression-h", bank)
    assert isinstance(method, LogisticRegressionH)
    pool = bank.select(Part.BASE_TRAIN)
    for c in range(bank.n_base):
        rows = pool.of_class(c)
        low, high = rows.min(0).values, rows.max(0).values
        assert ((method.centroids[c] >= low - 1e-5) & (method.centroids[c] <= high + 1e-5)).all()
    x, a, b = randn(3, bank.dim), randn(3, bank.dim, seed=1), randn(3, bank.dim, seed=2)
    torch.testing.assert_close(method.make(x, a, b), x + b - a)  # before training: the plain analogy


def test_snail_pads_in_front() -> None:
    assert "snail" in names()
    method = make("snail", dim=D, n_base=N, generator=torch.Generator().manual_seed(0))
    assert isinstance(method, LearnedMethod)
    mask = torch.ones(E, n, K, dtype=torch.bool)
    mask[:, 1, 1] = False  # one class has a single shot
    with torch.no_grad():
        once = method.eval().adapt(Support(SUPPORT.features, mask), BASE)(QUERIES)
        other = SUPPORT.features.clone()
        other[:, 1, 1] = 100.0
        torch.testing.assert_close(method.adapt(Support(other, mask), BASE)(QUERIES), once)
