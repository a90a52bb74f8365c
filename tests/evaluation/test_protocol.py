"""Both protocols against evaluation one episode and one query at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import EpisodeError
from wdae.evaluation import protocol
from wdae.evaluation.protocol import all_way, few_way, nearest_mean_accuracy
from wdae.evaluation.results import paired
from wdae.methods import WDAE, BaseClasses, InitialEstimate, Method, Scorer, Support
from wdae.methods.base import base_classes
from wdae.nn import Denoiser, unit
from wdae.nn.generate import initial_estimate, refine
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def wdae(bank: FeatureBank, kind: str = "gnn") -> WDAE:
    net = Denoiser(bank.dim, 10, 2, 0.9, kind, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    return WDAE(net.eval(), steps={1: 0.4, 5: 0.2})


def without(bank: FeatureBank, part: Part) -> FeatureBank:
    return bank.take(bank.parts != part.code)


def weights_of(method: Method, bank: FeatureBank, support: Tensor) -> Tensor:
    """All weights of one episode by the plain formulas; support [n, K, D]."""
    initial = initial_estimate(bank.base_weights, support.unsqueeze(0))
    if isinstance(method, WDAE):
        return refine(method.denoiser, initial, method.steps[support.shape[1]])[0]
    return initial[0]


@pytest.mark.parametrize("name", ["initial", "gnn", "mlp"])
@torch.no_grad()
def test_few_way_against_one_episode_at_a_time(small_bank: FeatureBank, name: str) -> None:
    method = InitialEstimate() if name == "initial" else wdae(small_bank, name)
    n_base, n, Q = small_bank.n_base, 5, 6
    result = few_way(method, small_bank, 1, n_query=Q, n_episodes=30, seed=7)
    novel, held_out = small_bank.select(Part.NOVEL), small_bank.select(Part.BASE_HELD_OUT)
    sampler = EpisodeSampler(novel, EpisodeSpec(n, (1,), Q, n * Q), 7, base_query=held_out)
    for e in range(30):
        episode = sampler.draw(e, 1)
        weights = unit(weights_of(method, small_bank, novel.features[episode.support[0]]))
        right_novel, right_base, right_all, in_all = [], [], [], {True: [], False: []}
        queries = [(novel.features[episode.query[0, c, q]], n_base + c) for c in range(n) for q in range(Q)]
        for row, label in zip(episode.base_query[0], episode.base_query_label[0].tolist(), strict=True):
            queries.append((held_out.features[row], label))
        for feature, label in queries:
            scores = weights @ feature
            own = scores[n_base:] if label >= n_base else scores[:n_base]
            first = n_base if label >= n_base else 0
            (right_novel if first else right_base).append(int(own.argmax()) + first == label)
            right_all.append(int(scores.argmax()) == label)
            in_all[label >= n_base].append(right_all[-1])
        expected = {"novel": right_novel, "base": right_base, "all": right_all}
        expected |= {"novel_in_all": in_all[True], "base_in_all": in_all[False]}
        for metric, values in expected.items():
            # One query of scores that tie to the last bit may fall either way.
            assert result.per_episode[metric][e] == pytest.approx(np.mean(values), abs=1e-6), (metric, e)
    for metric, row in result.per_episode.items():
        assert result.metrics[metric].mean == pytest.approx(row.mean())
        assert result.metrics[metric].ci95 == pytest.approx(1.96 * row.std(ddof=1) / 30**0.5, rel=1e-4)
    assert (result.n_way, result.n_shot, result.n_query, result.n_episodes, result.seed) == (5, 1, Q, 30, 7)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("joint", [True, False])
def test_chunk_size_affects_speed_alone(small_bank: FeatureBank, chunk: int, joint: bool) -> None:
    options = {"n_query": 5, "n_episodes": 70, "seed": 2, "joint": joint}
    whole = few_way(wdae(small_bank), small_bank, 5, chunk=1000, **options)  # type: ignore[arg-type]
    parts = few_way(wdae(small_bank), small_bank, 5, chunk=chunk, **options)  # type: ignore[arg-type]
    assert set(whole.per_episode) == set(parts.per_episode)
    for name, row in whole.per_episode.items():
        np.testing.assert_allclose(parts.per_episode[name], row, atol=0.021)  # a tie may break otherwise
        assert (np.abs(parts.per_episode[name] - row) > 1e-6).mean() < 0.05


def test_novel_only_equals_novel_of_joint(small_bank: FeatureBank) -> None:
    """The quick form that computes novel nodes only asks the same question."""
    for kind in ("gnn", "mlp"):
        joint = few_way(wdae(small_bank, kind), small_bank, 1, n_query=6, n_episodes=40, joint=True)
        alone = few_way(wdae(small_bank, kind), small_bank, 1, n_query=6, n_episodes=40, joint=False)
        assert list(alone.per_episode) == ["novel"]
        np.testing.assert_allclose(alone.per_episode["novel"], joint.per_episode["novel"], atol=1e-6)


def test_paired_interval_is_that_of_the_differences(small_bank: FeatureBank) -> None:
    options = {"n_query": 6, "n_episodes": 50, "seed": 1}
    a = few_way(wdae(small_bank), small_bank, 1, **options)  # type: ignore[arg-type]
    b = few_way(InitialEstimate(), small_bank, 1, **options)  # type: ignore[arg-type]
    for metric in ("novel", "all", "harmonic"):
        differences = [
            float(x) - float(y) for x, y in zip(a.per_episode[metric], b.per_episode[metric], strict=True)
        ]
        gain = paired(a, b, metric)
        assert gain.mean == pytest.approx(np.mean(differences))
        assert gain.ci95 == pytest.approx(1.96 * np.std(differences, ddof=1) / 50**0.5)
    # On the same episodes methods rise and fall together: tighter than two intervals apart.
    gain = paired(a, b, "novel")
    assert gain.ci95 < (a.metrics["novel"].ci95 ** 2 + b.metrics["novel"].ci95 ** 2) ** 0.5


def test_joint_by_default_where_the_bank_can(small_bank: FeatureBank) -> None:
    class NovelOnly(InitialEstimate):
        joint = False

    options = {"n_query": 4, "n_episodes": 5}
    plain = without(small_bank, Part.BASE_HELD_OUT)
    assert "all" in few_way(InitialEstimate(), small_bank, 1, **options).metrics  # type: ignore[arg-type]
    assert set(few_way(InitialEstimate(), plain, 1, **options).metrics) == {"novel"}  # type: ignore[arg-type]
    assert set(few_way(NovelOnly(), small_bank, 1, **options).metrics) == {"novel"}  # type: ignore[arg-type]
    with pytest.raises(EpisodeError, match="scores novel classes only"):
        few_way(NovelOnly(), small_bank, 1, joint=True)
    with pytest.raises(EpisodeError, match="no held-out base images"):
        few_way(InitialEstimate(), plain, 1, joint=True)
    with pytest.raises(EpisodeError, match="n_episodes must be at least 1, got 0"):
        few_way(InitialEstimate(), small_bank, 1, n_episodes=0)


def test_told_of_every_episode_and_of_the_validation_part(small_bank: FeatureBank) -> None:
    output: list[int] = []
    result = few_way(
        InitialEstimate(),
        small_bank,
        1,
        n_query=4,
        n_episodes=20,
        chunk=7,
        part=Part.VALIDATION,
        on_progress=output.append,
    )
    assert output == [7, 7, 6]
    assert result.info["part"] == "validation"


def test_base_weights_or_means(small_bank: FeatureBank) -> None:
    from dataclasses import replace

    assert torch.equal(base_classes(small_bank).weights, small_bank.base_weights)
    assert base_classes(small_bank).scale == small_bank.cosine_scale
    bare = replace(small_bank, base_weights=None, cosine_scale=None)
    train = bare.select(Part.BASE_TRAIN)
    means = torch.stack([unit(train.of_class(c).mean(0)) for c in range(train.n_classes)])
    torch.testing.assert_close(base_classes(bare).weights, means)
    assert base_classes(bare).scale == 10.0


class _Recorder(Method):
    """Notes the shots and queries it is given, and answers at random."""

    name = "recorder"

    def __init__(self) -> None:
        self.support: list[Tensor] = []
        self.queries: list[list[Tensor]] = []

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        self.support.append(support.features)
        self.queries.append([])
        n = support.features.shape[1] + (len(base.weights) if joint else 0)

        def score(queries: Tensor) -> Tensor:
            self.queries[-1].append(queries)
            return torch.rand(*queries.shape[:2], n, generator=torch.Generator().manual_seed(0))

        return score


def test_all_way_asks_every_image_outside_the_support(
    uneven_bank: FeatureBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_ALL_WAY_QUERIES", 50)
    method = _Recorder()
    all_way(method, uneven_bank, 3, n_episodes=4, seed=1)
    novel, held_out = uneven_bank.select(Part.NOVEL), uneven_bank.select(Part.BASE_HELD_OUT)
    images = [tuple(row) for row in torch.cat([novel.features, held_out.features]).tolist()]
    assert len(set(images)) == len(images)
    for support, queries in zip(method.support, method.queries, strict=True):
        assert support.shape[:3] == (1, novel.n_classes, 3)
        for c in range(novel.n_classes):  # class c of the scorer is class c of the part
            own = {tuple(row) for row in novel.of_class(c).tolist()}
            assert {tuple(row) for row in support[0, c].tolist()} <= own
        shots = {tuple(row) for row in support.flatten(0, 2).tolist()}
        asked = [tuple(row) for row in torch.cat(queries, dim=1)[0].tolist()]
        assert sorted(asked) == sorted(set(images) - shots)
        assert max(q.shape[1] for q in queries) <= 50
    assert len({tuple(s.flatten().tolist()) for s in method.support}) == 4  # other shots in every episode


@torch.no_grad()
def test_all_way_against_one_query_at_a_time(uneven_bank: FeatureBank) -> None:
    method, n_base = wdae(uneven_bank), uneven_bank.n_base
    result = all_way(method, uneven_bank, 5, n_episodes=3, seed=4)
    novel, held_out = uneven_bank.select(Part.NOVEL), uneven_bank.select(Part.BASE_HELD_OUT)
    sampler = EpisodeSampler(novel, EpisodeSpec(novel.n_classes, (5,), 0), 4)
    for e in range(3):
        episode = sampler.draw(e, 1)
        by_class = dict(zip(episode.novel_classes[0].tolist(), episode.support[0], strict=True))
        support = torch.stack([novel.features[by_class[c]] for c in range(novel.n_classes)])
        weights = unit(weights_of(method, uneven_bank, support))
        used = set(episode.support.flatten().tolist())
        queries = [
            (f, n_base + int(c))
            for i, (f, c) in enumerate(zip(novel.features, novel.labels, strict=True))
            if i not in used
        ]
        queries += [(f, int(c)) for f, c in zip(held_out.features, held_out.labels, strict=True)]
        right: dict[str, list[bool]] = {"novel": [], "base": [], "all": [], "novel_top5": [], "all_top5": []}
        for feature, label in queries:
            scores = weights @ feature
            own = range(n_base, len(scores)) if label >= n_base else range(n_base)
            place = sum(float(scores[c]) > float(scores[label]) for c in own)
            place_in_all = int((scores > scores[label]).sum())
            right["novel" if label >= n_base else "base"].append(place < 1)
            right["all"].append(place_in_all < 1)
            right["all_top5"].append(place_in_all < 5)
            if label >= n_base:
                right["novel_top5"].append(place < 5)
        for name, values in right.items():
            assert result.per_episode[name][e] == pytest.approx(np.mean(values), abs=1e-6), name
    expected = {"novel", "base", "all", "all_prior", "novel_in_all", "base_in_all", "harmonic"}
    assert set(result.metrics) == expected | {f"{name}_top5" for name in expected} | {"area"}
    assert result.n_way == novel.n_classes


def test_all_way_without_held_out_images(uneven_bank: FeatureBank) -> None:
    bare = all_way(wdae(uneven_bank), without(uneven_bank, Part.BASE_HELD_OUT), 1, n_episodes=3)
    full = all_way(wdae(uneven_bank), uneven_bank, 1, n_episodes=3)
    assert set(bare.metrics) == {"novel", "novel_top5"}
    np.testing.assert_allclose(bare.per_episode["novel"], full.per_episode["novel"], atol=0.01)


def test_no_metric_is_ever_nan(small_bank: FeatureBank, uneven_bank: FeatureBank) -> None:
    for result in (
        few_way(wdae(small_bank), small_bank, 1, n_query=6, n_episodes=20),
        few_way(InitialEstimate(), uneven_bank, 1, n_way=9, n_query=8, n_episodes=20),
        all_way(wdae(uneven_bank), uneven_bank, 8, n_episodes=2),
    ):
        for name, row in result.per_episode.items():
            assert np.isfinite(row).all(), name
            assert ((row >= 0) & (row <= 1)).all(), name


def test_all_way_needs_a_query_and_an_episode() -> None:
    """Every novel image a shot: nothing left to ask."""
    bank = synthetic_bank(6, 0, 7, 4, 8, seed=0, held_out_per_class=1)
    with pytest.raises(EpisodeError, match="n_episodes must be at least 1, got 0"):
        all_way(InitialEstimate(), bank, 1, n_episodes=0)
    with pytest.raises(EpisodeError, match="no novel image is left as a query"):
        all_way(InitialEstimate(), bank, 4, n_episodes=1)


def test_nearest_mean_accuracy_is_the_initial_estimate(small_bank: FeatureBank) -> None:
    found = nearest_mean_accuracy(small_bank.select(Part.NOVEL), 5, 1, 6, 90, seed=3)
    mean, ci95 = found.mean, found.ci95
    result = few_way(InitialEstimate(), small_bank, 1, n_query=6, n_episodes=90, seed=3, joint=False)
    assert mean == pytest.approx(result.metrics["novel"].mean, abs=1e-6)
    assert ci95 == pytest.approx(result.metrics["novel"].ci95, rel=1e-4)


def test_more_shots_are_better(small_bank: FeatureBank) -> None:
    one, five = (few_way(InitialEstimate(), small_bank, k, n_query=10, n_episodes=200) for k in (1, 5))
    assert five.metrics["novel"].mean > one.metrics["novel"].mean + 0.05
    assert one.metrics["novel"].mean > 0.25  # better than chance
