import pytest
import torch
import torch.nn.functional as F

from wdae.bank import ClassSet, FeatureBank
from wdae.errors import BankError
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def five_way_accuracy(
    classes: ClassSet, n_shot: int, base: torch.Tensor | None = None, n_episodes: int = 400
) -> float:
    """Nearest-mean accuracy; with ``base``, each estimate is first moved to its nearest base weights."""
    generator = torch.Generator().manual_seed(0)
    right = 0.0
    for _ in range(n_episodes):
        chosen = torch.randperm(classes.n_classes, generator=generator)[:5].tolist()
        means, queries = [], []
        for c in chosen:
            rows = classes.of_class(c)
            rows = rows[torch.randperm(len(rows), generator=generator)]
            means.append(rows[:n_shot].mean(0))
            queries.append(rows[n_shot : n_shot + 15])
        weights = F.normalize(torch.stack(means), dim=1)
        if base is not None:
            similarity, near = (weights @ base.T).topk(10)
            message = (similarity.mul(5).softmax(1)[:, :, None] * base[near]).sum(1)
            weights = F.normalize(weights + message, dim=1)
        truth = torch.arange(5).repeat_interleave(15)
        right += ((torch.cat(queries) @ weights.T).argmax(1) == truth).float().mean().item()
    return right / n_episodes


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return synthetic_bank()


def test_one_shot_is_hard_and_five_shots_are_easier(bank: FeatureBank) -> None:
    novel = bank.select(Part.NOVEL)
    assert 0.55 <= five_way_accuracy(novel, 1) <= 0.65
    assert 0.75 <= five_way_accuracy(novel, 5) <= 0.85


def test_neighbours_carry_information(bank: FeatureBank) -> None:
    novel = bank.select(Part.NOVEL)
    assert five_way_accuracy(novel, 1, bank.base_weights) > five_way_accuracy(novel, 1) + 0.01
    strangers = synthetic_bank(kinship=0.0)
    novel = strangers.select(Part.NOVEL)
    assert five_way_accuracy(novel, 1, strangers.base_weights) < five_way_accuracy(novel, 1) + 0.01


def test_the_base_weights_know_their_classes(bank: FeatureBank) -> None:
    held = bank.select(Part.BASE_HELD_OUT)
    assert bank.base_weights is not None
    assert ((held.features @ bank.base_weights.T).argmax(1) == held.labels).float().mean() > 0.7


def test_a_seed_makes_the_bank() -> None:
    one, two, three = (synthetic_bank(6, 2, 3, 5, 8, seed, held_out_per_class=1) for seed in (1, 1, 2))
    assert torch.equal(one.features, two.features)
    assert torch.equal(one.base_weights, two.base_weights)  # type: ignore[arg-type]
    assert not torch.equal(one.features, three.features)


def test_sizes_are_as_asked() -> None:
    bank = synthetic_bank(7, 3, 4, (6, 20), 10, 0, held_out_per_class=2)
    assert [len(bank.classes_of(part)) for part in Part] == [7, 7, 3, 4]
    assert bank.counts(Part.BASE_HELD_OUT) == [2] * 7
    assert len(set(bank.counts(Part.NOVEL))) > 1
    assert all(6 <= n <= 20 for n in bank.counts(Part.NOVEL))
    assert bank.dim == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_base": 0}, "at least 1 base class"),
        ({"n_novel": -1}, "no negative"),
        ({"images_per_class": 5, "held_out_per_class": 5}, "leave no base-train"),
        ({"dim": 1}, "dim must be"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(BankError, match=message):
        synthetic_bank(**arguments)  # type: ignore[arg-type]
