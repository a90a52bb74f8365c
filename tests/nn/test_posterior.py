"""Weights fitted further to many shots against a slow minimiser of the same loss, written class by class."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from seeded import randn
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import wdae.nn.posterior as module
from wdae.nn.cosine import unit
from wdae.nn.posterior import Posterior, likeliest, mass_of, regression

N, n, K, D, A = 7, 3, 12, 5, 14


def problem(E: int = 2) -> tuple[Posterior, Tensor, Tensor, Tensor, Tensor]:
    posterior = Posterior(unit(randn(A, D, seed=1)), N, strength=0.5)
    start, base = 6 * unit(randn(E, n, D, seed=2)), 6 * unit(randn(N, D, seed=3))
    shots = unit(start.unsqueeze(2) / 6 + 0.7 * randn(E, n, K, D, seed=4))
    return posterior, start, randn(E, n, seed=5), base, shots


def loss(
    weights: Tensor, start: Tensor, offsets: Tensor, base: Tensor, shots: list[Tensor], posterior: Posterior
) -> Tensor:
    """One episode; ``shots`` of each class that has many, None-like empty for the others."""
    total = torch.zeros((), dtype=torch.float64)
    many = [c for c, rows in enumerate(shots) if len(rows)]
    for c in many:
        for row in shots[c].double():
            scores = torch.cat([base.double() @ row, weights @ row + offsets.double()])
            total = total - scores.log_softmax(0)[N + c]
        total = total + posterior.strength / 2 * (weights[c] - start[c].double()).square().sum()
    mean = sum(len(shots[c]) for c in many) / len(many)
    each = posterior.share * mean * N / A
    for row in posterior.anchors.double():
        scores = torch.cat([base.double() @ row, weights @ row + offsets.double()])
        total = total - each * scores.log_softmax(0)[:N].logsumexp(0)
    return total


def slowly(start: Tensor, *rest: object) -> Tensor:
    """The minimum, by a general minimiser."""
    weights = start.double().clone().requires_grad_()
    optimiser = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(weights, start, *rest)  # type: ignore[arg-type]
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[arg-type, no-untyped-call]
    return weights.detach()


def test_it_is_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 3000)
    posterior, start, offsets, base, shots = problem()
    found = posterior.fit(start, offsets, base, torch.arange(n), shots)[0]
    for e in range(2):
        wanted = slowly(start[e], offsets[e], base, list(shots[e]), posterior)
        torch.testing.assert_close(found[e].double(), wanted, atol=2e-4, rtol=0)


def test_newtons_steps_end_at_the_minimum_with_intercepts(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, start, offsets, base, shots = problem()
    plain, newton = (replace(posterior, share=2.0, intercepts=own, eased=False) for own in (False, True))
    pad = torch.zeros(2, n, 1)
    few, _ = newton.fit(start, offsets, base, torch.arange(n), shots)
    monkeypatch.setattr(module, "_NEWTON_STEPS", 20)
    weights, intercepts = newton.fit(start, offsets, base, torch.arange(n), shots)
    assert float((few - weights).norm()) < 0.1 * float((weights - start).norm())
    for e in range(2):
        longer = replace(plain, anchors=F.pad(plain.anchors, (0, 1), value=1.0))
        padded = (F.pad(base, (0, 1)), list(F.pad(shots[e], (0, 1), value=1.0)), longer)
        wanted = slowly(torch.cat([start, pad], 2)[e], offsets[e], *padded)
        found = torch.cat([weights[e], intercepts[e].unsqueeze(1)], 1)
        torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=0)
    assert float(intercepts.abs().min()) > 0.01


def test_a_few_steps_are_most_of_the_way() -> None:
    posterior, start, offsets, base, shots = problem()
    found = posterior.fit(start, offsets, base, torch.arange(n), shots)[0]
    for e in range(2):
        rest = (start[e], offsets[e], base, list(shots[e]), posterior)
        best = slowly(start[e], *rest[1:])
        before, after, least = (float(loss(w.double(), *rest)) for w in (start[e], found[e], best))
        assert after - least < 0.02 * (before - least)


def test_few_shots_come_near_the_minimum_by_one_step() -> None:
    posterior, start, offsets, base, shots = problem()
    own = replace(posterior, strength=5.0, share=2.0, intercepts=True, eased=False)
    few, intercepts = own.fit(start, offsets, base, torch.arange(n), shots[:, :, :5])
    seen = replace(own, anchors=F.pad(own.anchors[::2], (0, 1), value=1.0))
    seen = replace(seen, share=own.share * A / len(seen.anchors))  # these count for all
    found, begun = torch.cat([few, intercepts.unsqueeze(2)], 2), F.pad(start, (0, 1))
    for e in range(2):
        rest = (
            begun[e],
            offsets[e],
            F.pad(base, (0, 1)),
            list(F.pad(shots[e, :, :5], (0, 1), value=1.0)),
            seen,
        )
        best = slowly(begun[e], *rest[1:])
        before, after, least = (float(loss(w.double(), *rest)) for w in (begun[e], found[e], best))
        assert after - least < 0.05 * (before - least)


def test_the_mass_of_base_classes_may_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, start, offsets, base, shots = problem()
    posterior = replace(posterior, intercepts=True)
    stride = posterior.stride(n, K)
    wanted = (posterior.anchors[::stride] @ base.T).double().exp().sum(1).log()
    monkeypatch.setattr(module, "_BLOCK", 3)
    mass = posterior.mass(base, stride)
    torch.testing.assert_close(mass, wanted, atol=1e-5, rtol=0)
    given, found = (
        posterior.fit(start, offsets, base, torch.arange(n), shots, mass=m)[0] for m in (mass, None)
    )
    assert torch.equal(given, found)
    other = posterior.fit(start, offsets, base, torch.arange(n), shots, mass=mass + 5)[0]
    assert not torch.allclose(other, found)


def test_how_many_base_images_are_looked_at() -> None:
    anchors = torch.zeros(6400, D)
    few, many = (Posterior(anchors, count, intercepts=True) for count in (64, 1000))
    before = replace(few, anchors=anchors[:4096], eased=False)
    for posterior, wanted in ((few, (1, 1, 6)), (many, (3, 1, 6)), (before, (2, 1, 4))):
        assert tuple(posterior.stride(*asked) for asked in ((5, 9), (5, 10), (65, 5))) == wanted


def test_classes_with_few_shots_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 3000)
    posterior, start, offsets, base, shots = problem(1)
    rows, mask = torch.tensor([0, 2]), torch.ones(1, 2, K, dtype=torch.bool)
    mask[0, 1, 10:] = False
    found = posterior.fit(start, offsets, base, rows, shots[:, rows], mask)[0]
    assert torch.equal(found[0, 1], start[0, 1])
    given = [shots[0, 0], shots[0, 1, :0], shots[0, 2, :10]]

    def fixed(weights: Tensor) -> Tensor:
        return torch.stack([weights[0], start[0, 1].double(), weights[2]])

    weights = start[0].double().clone().requires_grad_()
    optimiser = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(fixed(weights), start[0], offsets[0], base, given, posterior)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[arg-type, no-untyped-call]
    torch.testing.assert_close(found[0].double(), fixed(weights.detach()), atol=2e-4, rtol=0)


def test_base_images_count_the_same_beside_every_block_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside classes of few shots as beside those of many: by the mean of all shots."""
    posterior, start, offsets, base, shots = problem(1)
    posterior = replace(posterior, intercepts=True)
    mask = torch.ones(1, n, K, dtype=torch.bool)
    mask[0, 0, 2:] = False
    counted: list[float] = []
    of = module._Problem

    def kept(own: Tensor, shared: Tensor, targets: Tensor, weight: Tensor, *rest: Tensor) -> object:
        counted.append(float(weight[0, own.shape[1] :].sum()))
        return of(own, shared, targets, weight, *rest)

    monkeypatch.setattr(module, "_Problem", kept)
    for together in (n, 1):
        monkeypatch.setattr(module, "TOGETHER", together)
        posterior.fit(start, offsets, base, torch.arange(n), shots, mask)
    assert counted == pytest.approx([posterior.share * N * (2 + K + K) / 3] * (1 + n))


def test_a_strong_prior_leaves_weights_where_they_are_and_more_shots_move_them_further() -> None:
    posterior, start, offsets, base, shots = problem(1)
    rows = torch.arange(n)
    stiff = Posterior(posterior.anchors, N, 1e6).fit(start, offsets, base, rows, shots)[0]
    torch.testing.assert_close(stiff, start, atol=1e-3, rtol=0)
    moved = [
        float((posterior.fit(start, offsets, base, rows, some)[0] - start).norm())
        for some in (shots[:, :, :3], shots, shots.repeat(1, 1, 10, 1))
    ]
    assert moved[0] < moved[1] < moved[2]


def test_many_classes_are_updated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block alone is what two blocks give each of theirs, the others standing still."""
    posterior, start, offsets, base, shots = problem(1)
    monkeypatch.setattr(module, "TOGETHER", 2)
    found = posterior.fit(start, offsets, base, torch.arange(n), shots)[0]
    for rows in (torch.tensor([0, 1]), torch.tensor([2])):
        alone = posterior.fit(start, offsets, base, rows, shots[:, rows])[0]
        torch.testing.assert_close(found[:, rows], alone[:, rows])


def test_with_many_shots_the_prior_is_weaker_and_base_images_count_less() -> None:
    posterior, start, offsets, base, shots = problem()
    posterior = replace(posterior, share=3.0, intercepts=True)
    many, rows = shots.repeat(1, 1, 10, 1), torch.arange(n)
    plain = replace(posterior, eased=False, strength=0.5 / 6 ** (1 / 3), share=3.0 * 20 / 120)
    for own, wanted in ((posterior, plain), (replace(posterior, eased=False), None)):
        found = own.fit(start, offsets, base, rows, many)
        same = plain.fit(start, offsets, base, rows, many)
        close = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, same, strict=True))
        assert close == (wanted is not None)
    more = replace(posterior, anchors=posterior.anchors.repeat(20, 1))
    for counted, shots_each, wanted in (
        (posterior, 20, 3.0),
        (more, 20, 3.0),
        (more, 40, 20 * 2 * A / N / 40),
    ):
        assert counted.shares(torch.full((2, n), shots_each)).tolist() == pytest.approx([wanted] * 2)


def test_each_block_is_fitted_beside_all_other_classes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other blocks and those of none, by Newton's steps, which share what stands still."""
    posterior, start, offsets, base, shots = problem(2)
    posterior = replace(posterior, share=2.0, intercepts=True)
    monkeypatch.setattr(module, "TOGETHER", 1)
    monkeypatch.setattr(module, "_NEWTON_STEPS", 20)
    rows = torch.tensor([0, 2])
    weights, intercepts = posterior.fit(start, offsets, base, rows, shots[:, rows])
    found, begun = torch.cat([weights, intercepts.unsqueeze(2)], 2), F.pad(start, (0, 1))
    longer = replace(posterior, anchors=F.pad(posterior.anchors, (0, 1), value=1.0))
    for e, c in itertools.product(range(2), rows.tolist()):
        rest = (begun[e], offsets[e], F.pad(base, (0, 1)))
        given = [F.pad(shots[e, c], (0, 1), value=1.0) if i == c else torch.zeros(0, D + 1) for i in range(n)]

        def value(weight: Tensor, e: int = e, c: int = c, rest: Any = rest, given: Any = given) -> Tensor:
            others = begun[e].double()
            return loss(torch.cat([others[:c], weight[None], others[c + 1 :]]), *rest, given, longer)

        slope = torch.func.grad(value)(found[e, c].double())
        assert float(slope.norm()) < 1e-3 * float(torch.func.grad(value)(begun[e, c].double()).norm())
    assert torch.equal(weights[:, 1], start[:, 1]) and not bool(intercepts[:, 1].any())


def test_all_classes_from_their_images_are_logistic_regression_without_a_prior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_STEPS", 2000)
    labels = torch.arange(4).repeat_interleave(15)
    rows = unit(randn(4, D, seed=6)[labels] + 0.8 * randn(60, D, seed=7))
    found = likeliest(rows, labels, torch.zeros(4, D), strength=0.5)
    rival = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-9, max_iter=5000).fit(rows, labels)
    torch.testing.assert_close(found, torch.from_numpy(rival.coef_).float(), atol=2e-3, rtol=0)
    means = 8 * torch.stack([unit(rows[labels == c].mean(0)) for c in range(4)])
    torch.testing.assert_close(likeliest(rows, labels, means, strength=1e6), means, atol=1e-3, rtol=0)


def test_beside_regressed_base_weights_it_is_another_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior mean is shorter, as 10 to the number of shots, λ two thirds; base classes have intercepts."""
    monkeypatch.setattr(module, "_LONGER_NEWTON_STEPS", 20)
    posterior, start, offsets, base, shots = problem()
    anew = torch.cat([0.7 * base, randn(N, 1, seed=6)], 1)
    own = replace(posterior, share=2.0, intercepts=True, regressed=anew)
    weights, intercepts = own.fit(start, offsets, anew, torch.arange(n), shots)
    padded = replace(own, anchors=F.pad(own.anchors, (0, 1), value=1.0), strength=own.strength * 2 / 3)
    for e in range(2):
        begun = 10 / K * F.pad(start[e], (0, 1))
        wanted = slowly(begun, offsets[e], anew, list(F.pad(shots[e], (0, 1), value=1.0)), padded)
        found = torch.cat([weights[e], intercepts[e].unsqueeze(1)], 1)
        torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=0)


def test_its_few_steps_are_most_of_the_way_from_a_start_that_is_not_the_prior_mean() -> None:
    posterior, start, offsets, base, shots = problem()
    shots = torch.cat([shots] * 8, 2)  # 96 of them: the prior mean is a tenth of the start
    anew = torch.cat([0.7 * base, randn(N, 1, seed=6)], 1)
    own = replace(posterior, intercepts=True, regressed=anew)
    found = torch.cat(
        [one.view(2, n, -1) for one in own.fit(start, offsets, anew, torch.arange(n), shots)], 2
    )
    share = float(own.shares(torch.full((1, n), 8 * K)))
    seen = replace(own, anchors=F.pad(own.anchors, (0, 1), value=1.0), strength=own.strength * 2 / 3)
    for e in range(2):
        rest = (offsets[e], anew, list(F.pad(shots[e], (0, 1), value=1.0)), replace(seen, share=share))
        begun = F.pad(start[e], (0, 1)).double()
        prior = 10 / (8 * K) * begun
        best = slowly(prior, *rest)
        before, after, least = (float(loss(w.double(), prior, *rest)) for w in (begun, found[e], best))
        assert after - least < 0.02 * (before - least)


def test_base_weights_are_regressed_as_scikit_learn_does() -> None:
    features, labels = unit(randn(90, D, seed=7)), torch.arange(90) % 3
    features = unit(features + torch.eye(3, D)[labels])
    found = regression(features, labels, 3, strength=0.4)
    padded = F.pad(features, (0, 1), value=1.0).numpy()
    wanted = LogisticRegression(C=1 / 0.4, fit_intercept=False, tol=1e-8).fit(padded, labels.numpy()).coef_
    torch.testing.assert_close(found.double(), torch.from_numpy(wanted).double(), atol=1e-3, rtol=0)


def test_the_mass_of_base_classes_with_intercepts() -> None:
    rows, base = unit(randn(4, D, seed=8)), randn(N, D + 1, seed=9)
    wanted = [sum(float((row @ v[:-1] + v[-1]).exp()) for v in base) for row in rows]
    torch.testing.assert_close(mass_of(rows, base).exp(), torch.tensor(wanted, dtype=torch.float64))


def test_weights_beside_regressed_ones_are_as_long_and_have_as_much_in_common() -> None:
    """Were base weights novel ones, they would be regressed ones on average."""
    base = 6 * unit(randn(N, D, seed=3) + 2)
    posterior = Posterior(unit(randn(A, D, seed=1)), N, regressed=randn(N, D + 1, seed=2))
    anew = posterior.regressed
    assert anew is not None
    moved = posterior.beside_regressed(base.unsqueeze(0), base)[0]
    torch.testing.assert_close(moved.mean(0), anew[:, :-1].mean(0))
    ratio = float(anew[:, :-1].norm(dim=1).mean()) / 6
    torch.testing.assert_close(moved - moved.mean(0), ratio * (base - base.mean(0)))
    doubled = posterior.beside_regressed(2 * base.unsqueeze(0), base)[0]
    torch.testing.assert_close(doubled, 2 * moved)
