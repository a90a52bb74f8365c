from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from wdae.bank import ClassSet, FeatureBank, class_means
from wdae.bank.encoding import decode, encode
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def uneven_bank(seed: int = 0, dim: int = 5) -> FeatureBank:
    """Nine classes with unequal counts, images in no order, a base class with held-out images only."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[tuple[int, Part]] = []
    for label in range(9):
        for i in range(3 + 2 * label):
            if label in (0, 3, 4, 8):
                part = Part.BASE_HELD_OUT if i % 3 == 0 or label == 4 else Part.BASE_TRAIN
            else:
                part = Part.VALIDATION if label in (1, 7) else Part.NOVEL
            rows.append((label, part))
    order = torch.randperm(len(rows), generator=generator).tolist()
    return FeatureBank.build(
        torch.randn(len(rows), dim, generator=generator) * 3,
        [rows[i][0] for i in order],
        [f"class {label}" for label in range(9)],
        [rows[i][1] for i in order],
        base_weights=torch.randn(4, dim, generator=generator),
        cosine_scale=10.0,
        info={"source": "test"},
    )


def slow_select(bank: FeatureBank, part: Part) -> list[tuple[str, list[list[float]]]]:
    """The same, one image at a time."""
    groups: dict[int, list[list[float]]] = {c: [] for c in bank.base_classes} if part.is_base else {}
    for i in range(len(bank.labels)):
        if list(Part)[int(bank.parts[i])] == part:
            values = [float(x) for x in bank.features[i]]
            if bank.scales is not None:
                values = [x * float(bank.scales[i]) for x in values]
            length = sum(x * x for x in values) ** 0.5
            groups.setdefault(int(bank.labels[i]), []).append([x / length for x in values])
    return [(bank.class_names[c], groups[c]) for c in sorted(groups)]


@pytest.mark.parametrize("part", list(Part))
@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_select_equals_one_image_at_a_time(part: Part, encoding: str, tmp_path: Path) -> None:
    uneven_bank().save(tmp_path / "bank", dtype=encoding)  # type: ignore[arg-type]
    bank = FeatureBank.open(tmp_path / "bank")
    chosen, expected = bank.select(part), slow_select(bank, part)
    assert chosen.names == tuple(name for name, _ in expected)
    assert chosen.counts.tolist() == bank.counts(part) == [len(rows) for _, rows in expected]
    for index, (_, rows) in enumerate(expected):
        torch.testing.assert_close(chosen.of_class(index), torch.tensor(rows).view(-1, 5))
    assert chosen.labels.tolist() == [c for c, (_, rows) in enumerate(expected) for _ in rows]
    assert chosen.features.dtype == torch.float32


def test_select_works_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = uneven_bank().select(Part.NOVEL).features
    monkeypatch.setattr("wdae.bank.encoding.BLOCK_ROWS", 4)
    assert torch.equal(uneven_bank().select(Part.NOVEL).features, whole)


def test_select_gives_other_dtypes() -> None:
    chosen = uneven_bank().select(Part.NOVEL, dtype=torch.bfloat16)
    assert chosen.features.dtype == torch.bfloat16
    torch.testing.assert_close(
        chosen.features.float(), uneven_bank().select(Part.NOVEL).features, atol=4e-3, rtol=0
    )


def test_facts_about_classes() -> None:
    bank = uneven_bank()
    assert (bank.dim, bank.n_base, bank.base_classes) == (5, 4, [0, 3, 4, 8])
    assert bank.classes_of(Part.BASE_TRAIN) == bank.classes_of(Part.BASE_HELD_OUT) == [0, 3, 4, 8]
    assert bank.classes_of(Part.VALIDATION) == [1, 7]
    assert bank.classes_of(Part.NOVEL) == [2, 5, 6]
    assert bank.counts(Part.NOVEL) == [7, 13, 15]
    assert bank.counts(Part.BASE_TRAIN) == [2, 6, 0, 12]


def test_a_class_without_images_is_in_no_part() -> None:
    bank = FeatureBank.build(torch.ones(2, 3), [0, 2], ["a", "b", "c"], "novel")
    assert bank.classes_of(Part.NOVEL) == [0, 2]
    assert bank.select(Part.NOVEL).names == ("a", "c")
    assert not bank.has(Part.BASE_TRAIN)


def test_parts_are_given_in_several_ways() -> None:
    names = ["a", "b"]
    one = FeatureBank.build(torch.ones(3, 2), [0, 0, 1], names, ["base-train", Part.BASE_HELD_OUT, "NOVEL"])
    two = FeatureBank.build(torch.ones(3, 2).numpy(), torch.tensor([0, 0, 1]), names, torch.tensor([0, 1, 3]))
    assert torch.equal(one.parts, two.parts)
    assert FeatureBank.build(torch.ones(1, 2), [0], ["a"], Part.NOVEL).parts.tolist() == [3]


def test_other_floats_become_float32() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert (
            FeatureBank.build(torch.ones(1, 2, dtype=dtype), [0], ["a"], "novel").features.dtype
            == torch.float32
        )


def test_base_weights_are_replaced_in_a_copy() -> None:
    bank = uneven_bank()
    other = bank.with_base_weights(torch.ones(4, 5), 3)
    assert other.cosine_scale == 3.0
    assert torch.equal(other.base_weights, torch.ones(4, 5))  # type: ignore[arg-type]
    assert bank.cosine_scale == 10.0


def test_class_means_are_means_of_unit_vectors() -> None:
    bank = FeatureBank.build(
        torch.tensor([[2.0, 0.0], [0.0, 9.0], [0.0, 1.0], [5.0, 5.0]]),
        [1, 1, 0, 0],
        ["a", "b"],
        ["base-train", "base-train", "base-train", "base-held-out"],
    )
    torch.testing.assert_close(class_means(bank), torch.tensor([[0.0, 1.0], [0.5**0.5, 0.5**0.5]]))


def test_class_means_agree_with_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (50,), generator=generator)
    bank = FeatureBank.build(torch.randn(50, 6, generator=generator), labels, list("abcd"), "base-train")
    for label in range(4):
        mean = torch.stack([row / row.norm() for row in bank.features[labels == label]]).mean(0)
        torch.testing.assert_close(class_means(bank)[label], mean / mean.norm())


def test_int8_loses_at_most_half_a_step() -> None:
    values = (
        torch.randn(200, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 200)[:, None]
    )
    coded, scales = encode(values, None, "int8")
    assert scales is not None
    step = values.abs().amax(1, keepdim=True) / 127
    assert ((decode(coded, scales) - values).abs() <= 0.5001 * step).all()
    assert F.cosine_similarity(decode(coded, scales), values).min() > 0.9999
    again, same = encode(coded, scales, "int8")
    assert again is coded
    assert same is scales


def test_a_class_set_moves() -> None:
    moved = uneven_bank().select(Part.NOVEL).to("cpu")
    assert isinstance(moved, ClassSet)
    assert (moved.n_classes, moved.dim, moved.device.type) == (3, 5, "cpu")


def test_the_digest_tells_banks_apart_and_survives_saving(tmp_path: Path) -> None:
    bank = synthetic_bank(6, 2, 3, 8, 4, seed=0, held_out_per_class=2)
    bank.save(tmp_path / "bank")
    assert FeatureBank.open(tmp_path / "bank").digest == bank.digest
    other = synthetic_bank(6, 2, 3, 8, 4, seed=1, held_out_per_class=2)
    renamed = replace(bank, class_names=tuple(f"other {name}" for name in bank.class_names))
    weights = bank.with_base_weights(-bank.base_weights, 10.0)  # type: ignore[operator]
    assert len({bank.digest, other.digest, renamed.digest, weights.digest}) == 4
