"""Systems of other papers against slow and obvious computations of what they publish."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from method_samples import bank_of, fresh
from seeded import randn
from torch import Tensor, nn

from wdae.errors import ModelError
from wdae.methods import BaseClasses, LearnedMethod, Support, make
from wdae.methods.base import base_classes, prepared
from wdae.methods.baselines.maml import Maml
from wdae.methods.baselines.shifted_neurons import ShiftedNeurons, preprocessed
from wdae.methods.baselines.tadam import Tadam
from wdae.methods.fitted.distribution_calibration import DistributionCalibration
from wdae.methods.fitted.meta_qda import MetaQda
from wdae.methods.fitted.sgm import Sgm, squared_gradient
from wdae.nn.cosine import unit
from wdae.parts import Part

E, n, K, D = 2, 3, 4, 6
BASE = BaseClasses(torch.randn(7, D, generator=torch.Generator().manual_seed(2)))


def made(name: str, **options: float) -> LearnedMethod:
    generator = torch.Generator().manual_seed(0)
    method = make(name, dim=D, n_base=7, scale=3.0, generator=generator, **options)
    assert isinstance(method, LearnedMethod)
    return method.eval()


@pytest.mark.parametrize("batch", [False, True])
def test_sgm_is_the_squared_length_of_the_gradient(batch: bool) -> None:
    features, labels, rows = randn(5, D), torch.tensor([0, 2, 1, 1, 0]), randn(3, D, seed=1).requires_grad_()
    groups = [range(5)] if batch else [[i] for i in range(5)]
    squares = []
    for group in groups:
        loss = F.cross_entropy(features[list(group)] @ rows.T, labels[list(group)])
        squares.append(torch.autograd.grad(loss, rows)[0].square().sum())
    found = squared_gradient(features, (features @ rows.T).detach(), labels, batch)
    torch.testing.assert_close(found, torch.stack(squares).mean())


def test_sgms_penalty_shortens_gradients() -> None:
    bank = bank_of("easy")
    pool, found = bank.select(Part.BASE_TRAIN), []
    for penalty in (0.0, 5.0):
        method = make("sgm", dim=bank.dim, n_base=bank.n_base, scale=10.0, penalty=penalty)
        assert isinstance(method, Sgm)
        method.prepare(base_classes(bank), pool, torch.Generator())
        steps = torch.optim.SGD(method.parameters(), lr=0.05)
        for _ in range(20):
            features = method.representation.embed(pool.features)
            scores = method.representation.classify(features)
            square = squared_gradient(features, scores, pool.labels)
            steps.zero_grad()
            (F.cross_entropy(scores, pool.labels) + penalty * square).backward()
            steps.step()
        found.append(float(square.detach()))
    assert found[1] < 0.9 * found[0]


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_meta_qda_is_the_gaussian_of_the_posterior(mix: float) -> None:
    method = made("meta-qda", mix=mix)
    assert isinstance(method, MetaQda)
    with torch.no_grad():
        method.root.copy_(2 * torch.eye(D) + 0.3 * randn(D, D, seed=3))
        method.mean.copy_(randn(D, seed=4))
    support, queries = Support(randn(E, n, K, D)), randn(E, 5, D, seed=1)
    scores = method.adapt(support, BASE)(queries).detach()
    L = method.root.tril(-1) + method.root.diagonal().abs().diag()
    kappa, nu, m = 0.1, float(D), method.mean.detach()
    for e in range(E):
        for c in range(n):
            X = unit(support.features[e, c])
            mu = (kappa * m + X.sum(0)) / (kappa + K)
            scatter = L @ L.T + X.T @ X + kappa * torch.outer(m, m) - (kappa + K) * torch.outer(mu, mu)
            precision = torch.linalg.inv(scatter.detach() / (nu + K + D + 2))
            precision = (1 - mix) * precision + mix * torch.eye(D)
            for q in range(5):
                d = unit(queries[e, q]) - mu
                wanted = -0.5 * 3.0 * (d @ precision @ d)
                torch.testing.assert_close(scores[e, q, c], wanted, rtol=1e-3, atol=1e-3)


def test_calibrated_draws_lie_between_a_shot_and_the_base_means_nearest_to_it() -> None:
    bank = bank_of("no-spread")  # no covariance: every draw is its distribution's mean
    method = prepared(make("distribution-calibration", draws=4, spread=0.0, power=1.0), bank)
    assert isinstance(method, DistributionCalibration)
    shots = unit(randn(1, 2, 2, bank.dim))
    drawn = method.draw(Support(shots)).features  # two draws around each of two shots
    means = base_classes(bank).weights
    for c in range(2):
        for k in range(2):
            x = shots[0, c, k]
            near = means[(means - x).norm(dim=1).argsort()[:2]]
            wanted = (x + near.sum(0)) / 3
            torch.testing.assert_close(drawn[0, c, 3 * k], x, rtol=1e-4, atol=1e-5)
            for one in drawn[0, c, 3 * k + 1 : 3 * k + 3]:
                torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-4)


def test_calibrated_draws_have_the_covariance_of_base_classes() -> None:
    bank = bank_of("easy")
    method = prepared(make("distribution-calibration", draws=4000, n_nearest=1, power=1.0), bank)
    assert isinstance(method, DistributionCalibration)
    pool = bank.select(Part.BASE_TRAIN)
    drawn = method.draw(Support(pool.of_class(0)[:1].view(1, 1, 1, -1))).features[0, 0, 1:]
    rows = unit(pool.of_class(0))
    level = method.noise.square().mean()
    wanted = torch.cov(rows.T) + 0.21 * level
    assert (torch.cov(drawn.T) - wanted).abs().max() < 0.15 * wanted.abs().max()


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ({"power": 0.0}, {"draws": 0}, {"spread": -1.0}, {"strength": 0.0}):
        with pytest.raises(ModelError):
            make("distribution-calibration", **options)


def test_tadam_conditions_every_layer_by_the_mean_of_the_class_means() -> None:
    method = made("tadam", hidden=5)
    assert isinstance(method, Tadam)
    with torch.no_grad():
        for p in method.parameters():
            p.copy_(0.5 * randn(*p.shape, seed=p.numel()))
        method.scale.fill_(3.0)

    def layer(part: nn.Module, x: Tensor, task: Tensor | None) -> Tensor:
        out = part.layer(x)  # type: ignore[operator, union-attr]
        if task is None:
            return out
        both = part.task(task)  # type: ignore[operator, union-attr]
        gain, shift = both[: len(both) // 2], both[len(both) // 2 :]
        return out * (1 + part.strength[0] * gain) + part.strength[1] * shift  # type: ignore[index]

    def embed(x: Tensor, task: Tensor | None) -> Tensor:
        x = unit(x)
        return x + layer(method.last, torch.relu(layer(method.first, x, task)), task)

    support, queries = Support(randn(E, n, K, D)), randn(E, 5, D, seed=1)
    with torch.no_grad():
        scores = method.adapt(support, BASE)(queries)
        for e in range(E):
            rows = support.features[e]
            task = torch.stack([embed(x, None) for x in rows.view(-1, D)]).mean(0)
            means = [torch.stack([embed(x, task) for x in shots]).mean(0) for shots in rows]
            for q in range(5):
                distances = torch.stack([(embed(queries[e, q], task) - c).square().sum() for c in means])
                wanted = torch.log_softmax(-1.5 * distances, 0)
                torch.testing.assert_close(torch.log_softmax(scores[e, q], 0), wanted, rtol=1e-3, atol=1e-4)


def test_neurons_are_shifted_by_what_the_memory_brings() -> None:
    method = made("shifted-neurons", n_way=n, hidden=5)
    assert isinstance(method, ShiftedNeurons)
    with torch.no_grad():
        for p in method.parameters():
            p.copy_(0.5 * randn(*p.shape, seed=p.numel()))
    support, queries = Support(randn(1, n, K, D)), randn(1, 2, D, seed=1)
    with torch.no_grad():
        scores = method.adapt(support, BASE)(queries)
        shots, labels = unit(support.features[0]).view(-1, D), torch.arange(n).repeat_interleave(K)
        hidden_shifts, output_shifts = [], []
        for x, y in zip(shots, labels, strict=True):
            a = method.first(x)
            error = torch.softmax(method.last(torch.relu(a)), 0) - F.one_hot(y, n)
            info = [preprocessed((a[j] > 0) * error).flatten() for j in range(5)]
            hidden_shifts.append(torch.cat([method.shift_hidden(i) for i in info]))
            own = torch.cat([method.shift_output(preprocessed(error[c])) for c in range(n)])
            output_shifts.append(own - method.strength * error)
        for q in range(2):
            x = unit(queries[0, q])
            cosines = torch.stack([F.cosine_similarity(method.key(x), method.key(s), 0) for s in shots])
            shares = torch.softmax(method.scale * cosines, 0)
            shift = sum(s * v for s, v in zip(shares, hidden_shifts, strict=True))
            hidden = torch.relu(method.first(x)) + torch.relu(torch.as_tensor(shift))
            wanted = method.last(hidden) + sum(s * v for s, v in zip(shares, output_shifts, strict=True))
            torch.testing.assert_close(scores[0, q], wanted, rtol=1e-3, atol=1e-4)


def test_a_gradient_is_told_by_size_and_sign() -> None:
    told = preprocessed(torch.tensor([-1.0, 0.0, 1e-6]))
    wanted = torch.tensor([[0.0, -1.0], [-1.0, 0.0], [-1.0, 1e-6 * 22026.4658]])
    torch.testing.assert_close(told, wanted, rtol=1e-4, atol=1e-5)


def test_maml_adapts_the_whole_network_by_plain_gradient_steps() -> None:
    method = made("maml", n_way=n, hidden=5, test_steps=3, rate=0.2)
    assert isinstance(method, Maml)
    support, queries = Support(randn(E, n, K, D)), randn(E, 4, D, seed=1)
    scores = method.adapt(support, BASE)(queries)
    for e in range(E):
        network = nn.Sequential(nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, n))
        with torch.no_grad():
            for own, start in zip(network.parameters(), method.start, strict=True):
                own.copy_(start)
        steps = torch.optim.SGD(network.parameters(), lr=0.2)
        x, y = D**0.5 * unit(support.features[e]).view(-1, D), torch.arange(n).repeat_interleave(K)
        for _ in range(3):
            steps.zero_grad()
            F.cross_entropy(network(x), y).backward()
            steps.step()
        wanted = network(D**0.5 * unit(queries[e])).detach()
        torch.testing.assert_close(scores[e].detach(), wanted, rtol=1e-3, atol=1e-4)


def test_mamls_outer_gradient_goes_through_the_inner_steps() -> None:
    """To second order: it equals what finite differences of the whole computation give."""
    method = made("maml", n_way=n, hidden=5, n_steps=2, rate=0.5).train()
    assert isinstance(method, Maml)
    support, queries, labels = Support(randn(E, n, K, D)), randn(E, 4, D, seed=1), torch.tensor([0, 1, 2, 0])

    def loss() -> Tensor:
        scores = method.learn(support, BASE, joint=False)(queries)
        return F.cross_entropy(scores.flatten(0, 1), labels.repeat(E))

    value = loss()
    value.backward()
    weight = method.start[2]
    direction = randn(*weight.shape, seed=9)
    assert weight.grad is not None
    slope = float((weight.grad * direction).sum())
    ends = []
    with torch.no_grad():
        for size in (1e-2, -2e-2):
            weight.add_(size * direction)
            with torch.enable_grad():
                ends.append(float(loss().detach()))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.05, abs=1e-3)
    method.second_order = False
    with torch.no_grad():
        weight.add_(1e-2 * direction)
    weight.grad = None
    loss().backward()
    assert weight.grad is not None
    assert abs(float((weight.grad * direction).sum()) - slope) > 1e-3  # first order is another gradient


@pytest.mark.parametrize("name", ["maml", "shifted-neurons"])
def test_more_classes_than_it_was_made_for_are_refused(name: str) -> None:
    method = fresh(name, bank_of("easy"))
    support = Support(randn(1, 6, 1, bank_of("easy").dim))
    with pytest.raises(ModelError, match="n_way=6"):
        method.adapt(support, base_classes(bank_of("easy")))
