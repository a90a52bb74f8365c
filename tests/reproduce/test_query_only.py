"""Images that may be classified but never learned from: in banks, on disk, in the all-way protocol."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import BankError, EpisodeError
from wdae.evaluation.protocol import all_way, few_way
from wdae.methods import make
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    """4 base classes (3 held-out images each) and 3 novel ones: 8 images to learn from, 4 queries."""
    generator = torch.Generator().manual_seed(1)
    labels, parts, query_only = [], [], []
    for label in range(7):
        kinds = ([("base-train", False)] * 8 + [("base-held-out", True)] * 3) if label < 4 else (
            [("novel", False)] * 8 + [("novel", True)] * 4
        )  # fmt: skip
        for part, only in kinds:
            labels.append(label)
            parts.append(part)
            query_only.append(only)
    means = torch.randn(7, 12, generator=generator)
    features = means[labels] + 0.9 * torch.randn(len(labels), 12, generator=generator)
    names = [f"class {i}" for i in range(7)]
    return FeatureBank.build(features, labels, names, parts, means[:4], 10.0, query_only=query_only)


def test_parts_come_apart(bank: FeatureBank) -> None:
    assert bank.select(Part.NOVEL).counts.tolist() == [8, 8, 8]
    assert bank.select(Part.NOVEL, queries=True).counts.tolist() == [4, 4, 4]
    assert bank.select(Part.BASE_HELD_OUT).counts.tolist() == [3, 3, 3, 3]
    assert bank.counts(Part.NOVEL) == [12, 12, 12]
    with pytest.raises(BankError, match="queries only"):
        bank.select(Part.BASE_TRAIN, queries=True)


def test_on_disk_it_is_version_2_and_others_stay_version_1(
    bank: FeatureBank, small_bank: FeatureBank, tmp_path: Path
) -> None:
    bank.save(tmp_path / "two")
    small_bank.save(tmp_path / "one")
    assert json.loads((tmp_path / "two/manifest.json").read_text())["version"] == 2
    assert json.loads((tmp_path / "one/manifest.json").read_text())["version"] == 1
    back = FeatureBank.open(tmp_path / "two")
    assert back.query_only is not None and bank.query_only is not None
    assert torch.equal(back.query_only, bank.query_only)
    assert FeatureBank.open(tmp_path / "one").query_only is None
    assert back.with_base_weights(bank.base_weights).query_only is not None


def test_all_way_asks_for_the_marked_images_alone(bank: FeatureBank) -> None:
    method = make("initial-estimate")
    result = all_way(method, bank, 8, n_episodes=3)  # all 8 images are shots: nothing is left to chance
    learn, ask = bank.select(Part.NOVEL), bank.select(Part.NOVEL, queries=True)
    assert bank.base_weights is not None
    weights = torch.cat([bank.base_weights, torch.stack([learn.of_class(c).mean(0) for c in range(3)])])
    right = right_novel = 0
    queries = [(x, 4 + int(c)) for x, c in zip(ask.features, ask.labels, strict=True)]
    held_out = bank.select(Part.BASE_HELD_OUT)
    queries += [(x, int(c)) for x, c in zip(held_out.features, held_out.labels, strict=True)]
    for x, label in queries:
        cosines = torch.cosine_similarity(weights, x.unsqueeze(0), dim=1)
        right += int(cosines.argmax()) == label
        right_novel += label >= 4 and int(cosines[4:].argmax()) == label - 4
    assert result.metrics["all"].mean == pytest.approx(right / 24)
    assert result.metrics["novel"].mean == pytest.approx(right_novel / 12)
    assert result.metrics["all"].ci95 == pytest.approx(0, abs=1e-6)


def test_only_the_base_classes_of_the_test_are_ranked() -> None:
    """ImageNet-FS: 196 base classes are tested with 311 novel ones, and nothing is taken for the others."""
    bank = synthetic_bank(8, 0, 6, 14, 6, seed=1, held_out_per_class=5, spread=2.0)
    tested = {bank.class_names[c] for c in (0, 2, 5)}
    result = all_way(make("initial-estimate"), bank, 4, n_episodes=2, seed=3, base_queries=tested)
    pool, held_out = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    assert bank.base_weights is not None
    base = torch.nn.functional.normalize(bank.base_weights, dim=1)
    sampler = EpisodeSampler(pool, EpisodeSpec(6, (4,), 0), 3)
    rows = [r for r, c in enumerate(held_out.labels.tolist()) if held_out.names[c] in tested]
    for episode in range(2):
        drawn = sampler.draw(episode, 1)
        shots = {int(c): drawn.support[0, i].tolist() for i, c in enumerate(drawn.novel_classes[0])}
        means = [torch.nn.functional.normalize(pool.features[shots[c]].mean(0), dim=0) for c in range(6)]
        taken = {row for some in shots.values() for row in some}
        queries = [(pool.features[r], 8 + int(pool.labels[r])) for r in range(84) if r not in taken]
        queries += [(held_out.features[r], int(held_out.labels[r])) for r in rows]
        right: dict[str, list[bool]] = {"all": [], "base": [], "all_prior": []}
        for x, label in queries:
            scores = {c: 20.0 * float(base[c] @ x) for c in range(8) if held_out.names[c] in tested}
            novel = {8 + c: 20.0 * float(means[c] @ x) for c in range(6)}
            right["all"].append(max(scores | novel, key=(scores | novel).__getitem__) == label)
            if label < 8:
                right["base"].append(max(scores, key=scores.__getitem__) == label)
            sums = [sum(math.exp(v) for v in some.values()) for some in (scores, novel)]
            chances = {c: 0.2 * math.exp(v) / sums[0] for c, v in scores.items()}
            chances |= {c: 0.8 * math.exp(v) / sums[1] for c, v in novel.items()}
            right["all_prior"].append(max(chances, key=chances.__getitem__) == label)
        for metric, values in right.items():
            assert result.per_episode[metric][episode] == pytest.approx(sum(values) / len(values)), metric
    with pytest.raises(EpisodeError, match="held-out images"):
        all_way(make("initial-estimate"), bank, 1, n_episodes=1, base_queries={"nobody"})


def test_few_way_draws_from_the_images_to_learn_from(bank: FeatureBank) -> None:
    few_way(make("initial-estimate"), bank, 3, n_way=3, n_query=5, n_episodes=5)
    with pytest.raises(EpisodeError, match="has 8"):
        few_way(make("initial-estimate"), bank, 4, n_way=3, n_query=5, n_episodes=5)


@pytest.mark.parametrize(
    ("marks", "message"),
    [([True, False], "never learned from"), ([False, True, True], "bool"), ([0, 1], "bool")],
)
def test_wrong_marks_are_refused(marks: list[int], message: str) -> None:
    with pytest.raises(BankError, match=message):
        FeatureBank.build(torch.eye(2), [0, 1], ["a", "b"], ["base-train", "novel"], query_only=marks)


def test_marks_that_mark_nothing_are_dropped() -> None:
    bank = FeatureBank.build(torch.eye(2), [0, 1], ["a", "b"], "novel", query_only=[False, False])
    assert bank.query_only is None
