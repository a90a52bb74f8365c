"""What learned methods of other papers minimise, term by term, and what they may not look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.methods import LearnedMethod, Support, TrainingBatch, make
from wdae.methods.base import base_classes
from wdae.methods.baselines.feat import Feat
from wdae.methods.baselines.leo import Leo
from wdae.methods.baselines.snail import Attention, DenseBlock
from wdae.methods.baselines.tadam import Tadam
from wdae.methods.fitted.sgm import Sgm
from wdae.nn.cosine import cosine_scores, unit
from wdae.parts import Part
from wdae.stage2.learner import gather_batch
from wdae.synthetic import synthetic_bank

BANK = synthetic_bank(12, 0, 0, 10, 8, seed=0, held_out_per_class=2)


def batch() -> TrainingBatch:
    pool = BANK.select(Part.BASE_TRAIN)
    episodes = EpisodeSampler(pool, EpisodeSpec(4, (2,), 3), 0, fake=True).draw(0, 5)
    return gather_batch(pool, unit(base_classes(BANK).weights), episodes, equal_shots=True)


def made(name: str, **options: Any) -> LearnedMethod:
    """A method off its start, where many terms are zero."""
    method = make(name, dim=8, n_base=12, generator=torch.Generator().manual_seed(0), **options)
    assert isinstance(method, LearnedMethod)
    with torch.no_grad():
        for number, parameter in enumerate(method.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return method.train()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_relation_networks_fit_scores_to_one_and_zero() -> None:
    method, some = made("relation"), batch()
    scores, labels = method.score_batch(some)
    errors = [
        sum((float(torch.sigmoid(score.detach())) - (c == label)) ** 2 for c, score in enumerate(row))
        for row, label in zip(scores.flatten(0, 1), labels.flatten().tolist(), strict=True)
    ]
    assert float(method(some).total.detach()) == pytest.approx(sum(errors) / len(errors), rel=1e-5)


def test_tadam_classifies_base_images_beside_its_episodes() -> None:
    method, some = made("tadam", co_training=0.3, strength_penalty=0.7), batch()
    assert isinstance(method, Tadam) and some.novel_classes is not None
    scores, labels = method.score_batch(some)
    known = cosine_scores(method.embed(some.queries), method.base_rows, method.scale)
    true = torch.tensor([[some.novel_classes[e, c] for c in labels[e].tolist()] for e in range(5)])
    strengths = torch.cat([method.first.strength, method.last.strength])
    wanted = F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + 0.7 * strengths.square().sum()
    wanted = wanted + 0.3 * F.cross_entropy(known.flatten(0, 1), true.flatten())
    torch.testing.assert_close(method(some).total, wanted)


def test_the_penalties_of_leo() -> None:
    method = made("leo", latent=3, kl_weight=0.5, code_weight=0.0, orthogonality_weight=0.0)
    assert isinstance(method, Leo)
    mean, log_spread, start, codes = (normal(5, 4, 3, seed=n) for n in range(4))
    divergence = kl_divergence(Normal(mean, log_spread.exp()), Normal(torch.zeros(3), 1.0)).sum(-1).mean()
    torch.testing.assert_close(method._penalty(mean, log_spread, start, codes), 0.5 * divergence)
    method.kl_weight, method.code_weight = 0.0, 2.0
    shift = (codes - start).square().sum(-1).mean()
    torch.testing.assert_close(method._penalty(mean, log_spread, start, codes), 2 * shift)
    method.code_weight, method.orthogonality_weight = 0.0, 3.0
    columns = unit(method.decode.weight[:8].T)
    alike = (columns @ columns.T - torch.eye(3)).square().mean()
    torch.testing.assert_close(method._penalty(mean, log_spread, start, codes), 3 * alike)


@pytest.mark.parametrize("block", ["attention", "dense"])
def test_snail_reads_a_sequence_in_order(block: str) -> None:
    """A position sees those before it alone; a query sees all shots and no other query."""
    generator = torch.Generator().manual_seed(0)
    module = Attention(6, 4, 3, generator) if block == "attention" else DenseBlock(6, 3, 2, generator)
    support, queries, mask = normal(2, 9, 6), normal(2, 3, 6, seed=1), torch.ones(2, 9, dtype=torch.bool)
    before, asked, _ = module((support, queries, mask))
    changed = support.clone()
    changed[:, 5] = normal(2, 6, seed=2)
    after, _, _ = module((changed, queries, mask))
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 7], before[:, 7])
    torch.testing.assert_close(module((support, queries[:, 1:2], mask))[1], asked[:, 1:2])


def test_what_feat_drops_is_made_up_for() -> None:
    method = made("feat", dropout=0.25)
    assert isinstance(method, Feat)
    support = Support(normal(6, 5, 2, 8))
    base = base_classes(BANK)
    means = unit(unit(support.features).mean(2))
    adapted = method.eval().learn(support, base, False).novel - means  # type: ignore[attr-defined]
    dropped = method.train().learn(support, base, False, torch.Generator()).novel - means  # type: ignore[attr-defined]
    kept = dropped.abs() > 1e-6
    torch.testing.assert_close(dropped[kept], adapted[kept] / 0.75, rtol=1e-3, atol=1e-5)
    assert 0.6 < float(kept.float().mean()) < 0.9


@pytest.mark.parametrize("name", ["feat", "leo", "prototype-matching-h"])
def test_what_is_drawn_in_training_is_not_in_tests(name: str) -> None:
    method, support, queries = made(name), Support(unit(normal(3, 5, 2, 8))), unit(normal(3, 4, 8, seed=1))
    base = base_classes(BANK)

    def scores(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return method.learn(support, base, False)(queries).detach()

    assert not torch.equal(scores(0), scores(1))
    method.eval()
    assert torch.equal(scores(0), scores(1))


def test_sgm_adds_the_length_of_each_image_s_gradient() -> None:
    method, some = made("sgm", penalty=0.3), batch()
    assert isinstance(method, Sgm) and some.base_classes is not None and some.novel_classes is not None
    inner = method.representation
    classes = torch.cat([some.base_classes, some.novel_classes], dim=1)
    labels, features = classes.gather(1, some.labels).flatten(), inner.embed(some.queries).flatten(0, 1)
    scores = F.linear(features, inner.classify.weight, inner.classify.bias)
    lengths = []
    for feature, label in zip(features, labels.tolist(), strict=True):
        rows = inner.classify.weight.detach().clone().requires_grad_()
        loss = F.cross_entropy(rows @ feature.detach() + inner.classify.bias.detach(), torch.tensor(label))
        lengths.append(torch.autograd.grad(loss, rows)[0].square().sum())
    wanted = F.cross_entropy(scores, labels) + 0.3 * torch.stack(lengths).mean()
    torch.testing.assert_close(method(some).total, wanted, rtol=1e-4, atol=1e-5)


def test_analogies_are_fitted_with_the_weight_that_is_given() -> None:
    pool, totals = BANK.select(Part.BASE_TRAIN), []
    for weight in (0.0, 1.0, 5.0):
        method = made("logistic-regression-h", mse_weight=weight)
        method.prepare(base_classes(BANK), pool, torch.Generator().manual_seed(0))
        totals.append(float(method(batch()).total.detach()))
    assert totals[1] > totals[0] + 1e-3
    assert totals[2] - totals[0] == pytest.approx(5 * (totals[1] - totals[0]), rel=1e-3)
