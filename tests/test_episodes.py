"""What an episode promises, checked on every episode drawn."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.episodes import Episodes, EpisodeSampler, EpisodeSpec
from wdae.parts import Part


def class_set(counts: list[int]) -> ClassSet:
    """Rows that are their own index, class after class."""
    sizes = torch.tensor(counts)
    features = torch.arange(int(sizes.sum()), dtype=torch.float32).unsqueeze(1)
    return ClassSet(features, sizes.cumsum(0) - sizes, sizes, tuple(f"class {i}" for i in range(len(counts))))


def class_of(pool: ClassSet, rows: Tensor) -> Tensor:
    return pool.labels[rows]


def check(sampler: EpisodeSampler, episodes: Episodes) -> None:
    """All guarantees, by plain loops."""
    spec, pool = sampler.spec, sampler.novel
    for e in range(len(episodes)):
        novel = episodes.novel_classes[e].tolist()
        assert len(set(novel)) == spec.n_novel == len(novel)
        assert all(0 <= c < pool.n_classes for c in novel)
        for i, c in enumerate(novel):
            support, query = episodes.support[e, i].tolist(), episodes.query[e, i].tolist()
            assert len(support) == spec.max_shot
            assert len(query) == spec.n_query
            assert len({*support, *query}) == spec.max_shot + spec.n_query  # no image twice
            assert all(int(class_of(pool, torch.tensor(r))) == c for r in support + query)
            shots = int(episodes.support_mask[e, i].sum())
            assert shots in spec.n_shot
            assert episodes.support_mask[e, i].tolist() == [k < shots for k in range(spec.max_shot)]
        if not spec.unequal:
            assert len(set(episodes.support_mask[e].sum(-1).tolist())) == 1
        if sampler.fake:
            assert episodes.base_classes is not None
            base = episodes.base_classes[e].tolist()
            assert sorted(base + novel) == list(range(pool.n_classes))  # none twice, none missing
        else:
            assert episodes.base_classes is None
        rows, labels = episodes.base_query[e].tolist(), episodes.base_query_label[e].tolist()
        assert len(rows) == len(labels) == spec.n_base_query
        for row, label in zip(rows, labels, strict=True):
            if sampler.fake:
                assert int(class_of(pool, torch.tensor(row))) == base[label]
                assert base[label] not in novel
            else:
                assert sampler.base_query is not None
                assert int(class_of(sampler.base_query, torch.tensor(row))) == label


SPECS = [
    EpisodeSpec(5, (1,), 4),
    EpisodeSpec(5, (1, 3), 4, 10),
    EpisodeSpec(3, (1, 2, 5), 3, 7, unequal=True),
    EpisodeSpec(1, (2,), 0, 3),
]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_guarantees(spec: EpisodeSpec, fake: bool) -> None:
    pool = class_set([8, 9, 30, 12, 8, 100, 11, 10])
    held_out = class_set([3, 0, 5, 1])
    sampler = EpisodeSampler(pool, spec, 4, base_query=None if fake else held_out, fake=fake)
    check(sampler, sampler.draw(0, 150))


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("counts", [[70] * 6, [67, 300, 80, 67, 120, 90]])
def test_guarantees_of_the_sorted_draw(counts: list[int], fake: bool) -> None:
    """More than 64 images a class are drawn another way."""
    sampler = EpisodeSampler(class_set(counts), EpisodeSpec(3, (2, 7), 60, 5 if fake else 0), 4, fake=fake)
    check(sampler, sampler.draw(5, 60))


def test_counts_barely_sufficient() -> None:
    """K + Q images of each class: every image is used in every episode."""
    for size in (4, 70):
        sampler = EpisodeSampler(class_set([size] * 5), EpisodeSpec(5, (1,), size - 1), 0)
        episodes = sampler.draw(0, 40)
        check(sampler, episodes)
        used = torch.cat([episodes.support, episodes.query], dim=-1).flatten(1)
        assert torch.equal(used.sort(-1).values, torch.arange(5 * size).expand(40, -1))


def same(a: Episodes, b: Episodes) -> bool:
    pairs = ((getattr(a, f.name), getattr(b, f.name)) for f in fields(Episodes))
    return all(x is y if x is None else torch.equal(x, y) for x, y in pairs)


def joined(parts: list[Episodes]) -> Episodes:
    columns = ([getattr(p, f.name) for p in parts] for f in fields(Episodes))
    return Episodes(*(None if c[0] is None else torch.cat(c) for c in columns))


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("n_query", [6, 70])
def test_same_episodes_whatever_the_chunk_size(chunk: int, fake: bool, n_query: int) -> None:
    """Classes of unequal sizes and both ways of drawing images included."""
    pool = class_set([75, 90, 200, 79, 76, 400, 81, 80])
    spec = EpisodeSpec(3, (1, 4), n_query, 9, unequal=True)
    sampler = EpisodeSampler(pool, spec, 11, base_query=None if fake else class_set([2, 5]), fake=fake)
    whole = sampler.draw(0, 130)
    assert same(joined([sampler.draw(s, min(chunk, 130 - s)) for s in range(0, 130, chunk)]), whole)
    assert same(whole[20:40], sampler.draw(20, 20))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n_query", [6, 70])
def test_same_episodes_on_every_device(n_query: int) -> None:
    pool, spec = class_set([75, 90, 200, 79, 76, 400, 81, 80]), EpisodeSpec(3, (1, 4), n_query, 9)
    here, there = (EpisodeSampler(pool.to(d), spec, 1, fake=True).draw(3, 50) for d in ("cpu", "cuda"))
    assert torch.equal(here.support, there.support.cpu())
    assert torch.equal(here.query, there.query.cpu())
    assert torch.equal(here.base_query, there.base_query.cpu())


def test_another_seed_gives_other_episodes() -> None:
    pool, spec = class_set([20] * 10), EpisodeSpec(5, (1,), 5)
    a, b, again = (EpisodeSampler(pool, spec, seed).draw(0, 50) for seed in (0, 1, 0))
    assert same(a, again)
    assert not torch.equal(a.novel_classes, b.novel_classes)
    assert not torch.equal(a.support, b.support)


def test_queries_do_not_change_the_classes() -> None:
    """One purpose, one stream: asking for base queries leaves classes and images as they are."""
    pool = class_set([20] * 10)
    without = EpisodeSampler(pool, EpisodeSpec(5, (1,), 5), 0).draw(0, 50)
    with_base = EpisodeSampler(pool, EpisodeSpec(5, (1,), 5, 20), 0, base_query=class_set([4, 4])).draw(0, 50)
    assert torch.equal(without.novel_classes, with_base.novel_classes)
    assert torch.equal(without.query, with_base.query)


def chi_square(counts: Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def limit(cells: int) -> float:
    return (cells - 1) + 4 * math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("fake", [False, True])
def test_uniform_over_sets_of_classes(fake: bool) -> None:
    sampler = EpisodeSampler(class_set([5] * 6), EpisodeSpec(3, (1,), 1), 2, fake=fake)
    drawn = sampler.draw(0, 12_000).novel_classes
    for position in range(3):
        assert chi_square(torch.bincount(drawn[:, position], minlength=6)) < limit(6)
    sets = {frozenset(s): i for i, s in enumerate(itertools.combinations(range(6), 3))}
    counts = torch.bincount(torch.tensor([sets[frozenset(row)] for row in drawn.tolist()]), minlength=20)
    # Sets within an episode are drawn without replacement: all 20 as likely.
    assert chi_square(counts) < limit(20)


@pytest.mark.parametrize("n_query", [1, 66])
def test_uniform_over_images(n_query: int) -> None:
    """Each image of a class, large or small, is as likely in each place; ordered pairs too."""
    extra = n_query + 1
    pool = class_set([extra + 3, extra + 6])
    sampler = EpisodeSampler(pool, EpisodeSpec(2, (1,), n_query), 1)
    episodes = sampler.draw(0, 6000)
    for c, size in enumerate((extra + 3, extra + 6)):
        at = episodes.novel_classes == c
        shot = episodes.support[at][:, 0] - int(pool.starts[c])
        first = episodes.query[at][:, 0] - int(pool.starts[c])
        last = episodes.query[at][:, -1] - int(pool.starts[c])
        for drawn in (shot, first, last):
            assert chi_square(torch.bincount(drawn, minlength=size)) < limit(size)
        if n_query == 1:
            pairs = torch.bincount(shot * size + first, minlength=size * size).view(size, size)
            assert int(pairs.diagonal().sum()) == 0
            off = pairs[~torch.eye(size, dtype=torch.bool)]
            assert chi_square(off) < limit(len(off))


@pytest.mark.parametrize("fake", [False, True])
def test_base_queries_are_uniform_over_classes_then_images(fake: bool) -> None:
    pool, held_out = class_set([4, 4, 4, 4, 4]), class_set([2, 0, 6, 3])
    spec = EpisodeSpec(2, (1,), 1, 5)
    sampler = EpisodeSampler(pool, spec, 0, base_query=None if fake else held_out, fake=fake)
    episodes = sampler.draw(0, 4000)
    if fake:
        assert chi_square(torch.bincount(class_of(pool, episodes.base_query).flatten(), minlength=5)) < limit(
            5
        )
        assert chi_square(torch.bincount(episodes.base_query_label.flatten(), minlength=3)) < limit(3)
        assert chi_square(torch.bincount(episodes.base_query.flatten(), minlength=20)) < limit(20)
    else:
        labels = torch.bincount(episodes.base_query_label.flatten(), minlength=4)
        assert int(labels[1]) == 0  # no held-out image, so never asked for
        assert chi_square(labels[[0, 2, 3]]) < limit(3)
        rows = torch.bincount(episodes.base_query.flatten(), minlength=11)
        assert chi_square(rows[2:8]) < limit(6)


def test_numbers_of_shots_are_mixed_evenly() -> None:
    pool = class_set([12] * 6)
    together = EpisodeSampler(pool, EpisodeSpec(4, (1, 2, 5), 2), 0).draw(0, 3000)
    shots = together.support_mask.sum(-1)
    assert bool((shots == shots[:, :1]).all())
    assert chi_square(torch.bincount(shots[:, 0])[[1, 2, 5]]) < limit(3)
    apart = EpisodeSampler(pool, EpisodeSpec(4, (1, 2, 5), 2, unequal=True), 0).draw(0, 3000)
    shots = apart.support_mask.sum(-1)
    assert bool((shots != shots[:, :1]).any())
    assert chi_square(torch.bincount(shots.flatten())[[1, 2, 5]]) < limit(3)


def test_on_a_bank(uneven_bank: FeatureBank) -> None:
    novel, held_out = uneven_bank.select(Part.NOVEL), uneven_bank.select(Part.BASE_HELD_OUT)
    sampler = EpisodeSampler(novel, EpisodeSpec(5, (1,), 8, 20), 0, base_query=held_out)
    check(sampler, sampler.draw(0, 50))
    train = EpisodeSampler(uneven_bank.select(Part.BASE_TRAIN), EpisodeSpec(6, (1,), 3, 20), 0, fake=True)
    check(train, train.draw(0, 50))


def test_a_number_of_shots_may_be_given_alone() -> None:
    assert EpisodeSpec(5, 3).n_shot == (3,)  # type: ignore[arg-type]
    assert EpisodeSpec(5, (1, 3)).max_shot == 3
