"""Closed forms and optima against independent solvers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seeded import randn
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.linear_model import Ridge
from torch import Tensor

from wdae.errors import ModelError
from wdae.methods import BaseClasses, Setting, Support, make
from wdae.methods.base import prepared
from wdae.methods.baselines.tpn import Propagation, propagate
from wdae.methods.examples import support_examples
from wdae.nn.cosine import unit
from wdae.nn.logistic import logistic_regression
from wdae.nn.ridge import ridge
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def problem(E: int, n: int, K: int, D: int) -> tuple[Tensor, Tensor]:
    """Unit features around class means, one-hot targets."""
    features = unit(randn(E, n, 1, D) + 1.5 * randn(E, n, K, D, seed=1)).reshape(E, n * K, D)
    return features, torch.eye(n).repeat_interleave(K, 0).expand(E, -1, -1)


@pytest.mark.parametrize(("M", "D"), [(5, 12), (30, 7)])
@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_ridge_is_scikit_learns(M: int, D: int, penalty: float) -> None:
    X, Y = randn(3, M, D), randn(3, M, 4, seed=1)
    weight = 0.5 + randn(3, M, seed=2).abs()
    ours = ridge(X, Y, penalty, weight)
    for e in range(3):
        theirs = Ridge(alpha=penalty, fit_intercept=False)
        theirs.fit(X[e].double().numpy(), Y[e].double().numpy(), sample_weight=weight[e].double().numpy())
        np.testing.assert_allclose(ours[e].numpy(), theirs.coef_, atol=1e-3)


def test_both_forms_of_ridge_agree_and_so_do_their_gradients() -> None:
    X, Y = randn(2, 6, 6).double().float(), randn(2, 6, 3, seed=1)
    extra = torch.cat([X, torch.zeros(2, 1, 6)], dim=1)  # a row of zeros: M > D, the same solution
    grads = []
    for features, targets in ((X, Y), (extra, torch.nn.functional.pad(Y, (0, 0, 0, 1)))):
        leaf = features.clone().requires_grad_()
        ridge(leaf, targets, 0.7).square().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad[:, :6])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-4)


def test_an_example_of_weight_zero_is_not_there() -> None:
    X, Y = randn(1, 8, 5), randn(1, 8, 2, seed=1)
    weight = torch.tensor([[1.0] * 6 + [0.0] * 2])
    torch.testing.assert_close(ridge(X, Y, 1.0, weight), ridge(X[:, :6], Y[:, :6], 1.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 1), (5, 5), (12, 3)])
@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_logistic_regression_is_scikit_learns(shape: tuple[int, int], strength: float) -> None:
    n, K = shape
    X, Y = problem(4, n, K, 20)
    weight = torch.ones(4, n * K)
    weight[:, ::3] = 2.0
    weights, bias = logistic_regression(X, Y, weight, strength)
    queries = unit(randn(4, 30, 20, seed=5))
    ours = queries @ weights.transpose(1, 2) + bias.unsqueeze(1)
    for e in range(4):
        theirs = SklearnLogistic(C=strength, solver="newton-cg", tol=1e-10, max_iter=1000)
        theirs.fit(X[e].double().numpy(), Y[e].argmax(-1).numpy(), sample_weight=weight[e].double().numpy())
        expected = torch.from_numpy(theirs.decision_function(queries[e].double().numpy()))
        # Softmax leaves a common shift of all classes open.
        difference = ours[e] - expected
        assert (difference - difference.mean(-1, keepdim=True)).abs().max() < 1e-3


def test_the_method_is_the_regression_on_its_shots() -> None:
    support, queries = Support(randn(2, 5, 3, 16)), randn(2, 7, 16, seed=3)
    scores = make("logistic-regression", strength=2.0).adapt(support, BaseClasses(randn(4, 16)))(queries)
    examples = support_examples(Support(unit(support.features)))
    weights, bias = logistic_regression(examples.features, examples.targets, examples.weight, 2.0)
    expected = unit(queries) @ weights.transpose(1, 2) + bias.unsqueeze(1)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spread", [0.5, 0.99])
def test_propagation_is_a_dense_linear_solve(spread: float) -> None:
    W = randn(3, 9, 9).abs()
    W = (W + W.transpose(1, 2)) * (1 - torch.eye(9))
    Y = randn(3, 9, 4, seed=1).abs()
    ours = propagate(W, Y, spread)
    for e in range(3):
        w = W[e].double().numpy()
        d = np.diag(1 / np.sqrt(w.sum(1)))
        expected = np.linalg.solve(np.eye(9) - spread * d @ w @ d, Y[e].double().numpy())
        np.testing.assert_allclose(ours[e].numpy(), expected, rtol=1e-3, atol=1e-3)


def test_the_similarities_of_propagation_against_a_loop() -> None:
    method = Propagation(Setting(6, 4), n_neighbours=3).eval()
    nodes = unit(randn(1, 8, 6))
    W = method.similarity(nodes, torch.ones(1, 8, dtype=torch.bool))[0].detach()
    plain = torch.zeros(8, 8)
    for i in range(8):
        for j in range(8):
            if i != j:
                plain[i, j] = torch.exp(-0.5 * 8.0 * (nodes[0, i] - nodes[0, j]).square().sum())
    nearest = [set(plain[i].topk(3).indices.tolist()) for i in range(8)]
    for i in range(8):
        for j in range(8):
            if not (j in nearest[i] or i in nearest[j]):
                plain[i, j] = 0
    torch.testing.assert_close(W, plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(W, W.T)


def test_a_singular_ridge_system_is_refused() -> None:
    twice = randn(1, 1, 8).expand(1, 2, 8)  # one picture, given as two shots
    with pytest.raises(ModelError, match="singular"):
        ridge(twice, torch.eye(2)[None], 0.0)
    with pytest.raises(ModelError, match="singular"):
        ridge(torch.cat([randn(1, 9, 3), torch.zeros(1, 9, 1)], -1), randn(1, 9, 2), 0.0)
    assert ridge(twice, torch.eye(2)[None], 1.0).isfinite().all()


def test_lda_is_the_discriminant_that_a_loop_computes() -> None:
    bank = synthetic_bank(6, 0, 5, 30, 4, seed=2, held_out_per_class=5)
    pool = bank.select(Part.BASE_TRAIN)
    rows = [pool.of_class(c).double() for c in range(6)]
    within = torch.stack([(r - r.mean(0)).T @ (r - r.mean(0)) for r in rows]).sum(0) / (
        len(pool.features) - 6
    )
    shrunk = 0.3 * within + 0.7 * within.trace() / 4 * torch.eye(4).double()
    support, queries = Support(randn(1, 5, 3, 4)), randn(1, 7, 4, seed=1)
    scores = prepared(make("lda", shrink=0.7), bank).adapt(support, BaseClasses(randn(6, 4)), joint=True)(
        queries
    )
    means = [*(r.mean(0) for r in rows), *(unit(shots).mean(0).double() for shots in support.features[0])]
    for q, query in enumerate(unit(queries[0]).double()):
        distances = [-(query - m) @ torch.linalg.solve(shrunk, query - m) / 2 for m in means]
        wanted = torch.stack(distances).float()
        found = scores[0, q]
        ratio = (found - found.mean()) / (wanted - wanted.mean())
        torch.testing.assert_close(ratio, ratio[:1].expand(11), rtol=1e-3, atol=1e-3)
        assert ratio[0] > 0


def test_logistic_regression_of_many_examples_needs_no_matrix_of_them_all() -> None:
    """More examples than twice the features take another way to the same optimum."""
    features, labels = randn(1, 60, 4), torch.arange(60) % 3
    targets = torch.nn.functional.one_hot(labels, 3).float()[None]
    weights, bias = logistic_regression(features, targets, torch.ones(1, 60))
    padded = torch.cat([features, torch.zeros(1, 60, 40)], -1)  # as many features: the Gram matrix is used
    others, other_bias = logistic_regression(padded, targets, torch.ones(1, 60))
    torch.testing.assert_close(weights, others[..., :4], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(bias, other_bias, rtol=1e-3, atol=1e-4)
