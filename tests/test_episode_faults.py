"""Episodes that cannot be drawn are refused in words, before anything is computed."""

from __future__ import annotations

import pytest

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import BankError, EpisodeError, ModelError
from wdae.evaluation.protocol import all_way, few_way
from wdae.methods import InitialEstimate, make
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


@pytest.mark.parametrize("shots", [0, (0,), (1, 0), (-2,), ()])
def test_no_shots(shots: int | tuple[int, ...]) -> None:
    with pytest.raises(
        EpisodeError, match=r"n_shot must be at least 1, got .*a class is learned from 1\+ images"
    ):
        EpisodeSpec(5, shots)  # type: ignore[arg-type]


def test_no_shots_in_an_evaluation(small_bank: FeatureBank) -> None:
    for protocol in (few_way, all_way):
        with pytest.raises(EpisodeError, match="n_shot must be at least 1, got"):
            protocol(InitialEstimate(), small_bank, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_novel": 0}, "n_novel must be at least 1, got 0"),
        ({"n_query": -1}, "n_query must be at least 0, got -1"),
        ({"n_base_query": -5}, "n_base_query must be at least 0, got -5"),
    ],
)
def test_numbers_out_of_range(options: dict[str, int], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        EpisodeSpec(**options)  # type: ignore[arg-type]


def test_a_class_with_too_few_images(uneven_bank: FeatureBank) -> None:
    novel = uneven_bank.select(Part.NOVEL)
    few = [(name, n) for name, n in zip(novel.names, novel.counts.tolist(), strict=True) if n < 5 + 15]
    assert 0 < len(few) < novel.n_classes
    with pytest.raises(EpisodeError) as caught:
        few_way(InitialEstimate(), uneven_bank, 5, n_query=15)
    text = str(caught.value)
    assert "5 shots + 15 queries = 20 images of a class" in text
    assert "lower n_shot or n_query, or leave the class out" in text
    for name, count in few[:5]:
        assert f"{name!r} has {count}" in text


def test_exactly_enough_images_are_enough(small_bank: FeatureBank) -> None:
    novel = small_bank.select(Part.NOVEL)
    EpisodeSampler(novel, EpisodeSpec(5, (11,), 15), 0)
    with pytest.raises(EpisodeError, match=r"'.*' has 26, .* and 3 more; lower n_shot or n_query"):
        EpisodeSampler(novel, EpisodeSpec(5, (12,), 15), 0)


def test_more_novel_classes_than_there_are(small_bank: FeatureBank) -> None:
    with pytest.raises(EpisodeError, match="9 novel classes an episode, but there are only 8 classes"):
        few_way(InitialEstimate(), small_bank, 1, n_way=9)
    few_way(InitialEstimate(), small_bank, 1, n_way=8, n_episodes=2)


def test_fake_novel_classes_leave_two_base_classes(small_bank: FeatureBank) -> None:
    pool = small_bank.select(Part.BASE_TRAIN)
    EpisodeSampler(pool, EpisodeSpec(22, (1,), 2), 0, fake=True)
    with pytest.raises(
        EpisodeError, match=r"only 24 base classes to play novel \(at least 2 must stay base\)"
    ):
        EpisodeSampler(pool, EpisodeSpec(23, (1,), 2), 0, fake=True)


def test_base_queries_without_base_images(small_bank: FeatureBank) -> None:
    with pytest.raises(EpisodeError, match="base queries are asked for, but no base images were given"):
        EpisodeSampler(small_bank.select(Part.NOVEL), EpisodeSpec(5, (1,), 5, 10), 0)


def test_a_bank_without_the_part(small_bank: FeatureBank) -> None:
    bank = synthetic_bank(6, 0, 0, 10, 8, seed=0, held_out_per_class=2)
    with pytest.raises(BankError, match="no novel images; it has: base-train, base-held-out"):
        few_way(InitialEstimate(), bank, 1)


def test_feature_size_different_from_the_model(small_bank: FeatureBank) -> None:
    for name in ("wdae-gnn", "wdae-mlp"):
        with pytest.raises(
            ModelError, match="features of size 640, the base weights have 24; use a bank from"
        ):
            few_way(make(name, dim=640), small_bank, 1)
