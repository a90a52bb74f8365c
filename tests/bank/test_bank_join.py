"""Banks of the same pictures joined into one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from wdae.bank import FeatureBank, class_means
from wdae.bank.join import join_banks
from wdae.cli.main import main
from wdae.errors import BankError
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def two_banks() -> tuple[FeatureBank, FeatureBank]:
    one = synthetic_bank(6, 3, 4, 12, 16, 0, held_out_per_class=3)
    turned = torch.linalg.qr(torch.randn(16, 24, generator=torch.Generator().manual_seed(1)).T).Q.T
    other = FeatureBank.build(
        one.features.float() @ turned, one.labels, one.class_names, one.parts, info={"backbone": "other"}
    )
    weights = torch.randn(6, 24, generator=torch.Generator().manual_seed(2))
    return one, other.with_base_weights(weights, 12.0)


def test_a_cosine_is_the_mean_of_the_cosines() -> None:
    one, other = two_banks()
    both = join_banks([one, other])
    assert both.dim == 40
    for part in (Part.BASE_HELD_OUT, Part.NOVEL):
        first, second, joined = (bank.select(part).features for bank in (one, other, both))
        slow = 0.5 * (first @ first.T + second @ second.T)
        assert torch.allclose(joined @ joined.T, slow, atol=1e-5)
    assert both.base_weights is not None
    assert other.base_weights is not None
    queries = both.select(Part.BASE_HELD_OUT).features
    learned = F.normalize(other.base_weights, dim=1)
    base = class_means(one) if one.base_weights is None else one.base_weights
    slow = 0.5 * (
        one.select(Part.BASE_HELD_OUT).features @ F.normalize(base, dim=1).T
        + other.select(Part.BASE_HELD_OUT).features @ learned.T
    )
    assert torch.allclose(queries @ both.base_weights.T, slow, atol=1e-5)
    assert both.info["joined"][1] == {"backbone": "other"}


def test_what_one_backbone_has_seen_is_not_held_out() -> None:
    one, other = two_banks()
    parts = other.parts.clone()
    parts[parts == Part.BASE_HELD_OUT.code] = Part.BASE_TRAIN.code
    both = join_banks([one, replace(other, parts=parts)])
    assert not both.has(Part.BASE_HELD_OUT)
    assert join_banks([one, other]).counts(Part.BASE_HELD_OUT) == [3] * 6


def test_other_pictures_are_refused() -> None:
    one, other = two_banks()
    with pytest.raises(BankError, match="two banks or more"):
        join_banks([one])
    with pytest.raises(BankError, match="same pictures"):
        join_banks([one, replace(other, labels=other.labels.flip(0))])
    swapped = other.parts.clone()
    swapped[other.parts == Part.NOVEL.code] = Part.VALIDATION.code
    with pytest.raises(BankError, match="other validation or novel"):
        join_banks([one, replace(other, parts=swapped)])


def test_by_command(tmp_path: Path) -> None:
    one, other = two_banks()
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    with pytest.raises(SystemExit) as end:
        main(["bank", "join", str(tmp_path / "one"), str(tmp_path / "other"), "-o", str(tmp_path / "both")])
    assert end.value.code == 0
    assert FeatureBank.open(tmp_path / "both").dim == 40
