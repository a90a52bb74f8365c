import json
from pathlib import Path

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.bank.encoding import Encoding
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


@pytest.fixture
def bank() -> FeatureBank:
    return synthetic_bank(6, 2, 3, (5, 9), 16, 1, held_out_per_class=2)


def test_a_bank_comes_back_bit_for_bit(bank: FeatureBank, tmp_path: Path) -> None:
    bank.save(tmp_path / "bank")
    back = FeatureBank.open(tmp_path / "bank")
    for name in ("features", "labels", "parts", "base_weights"):
        assert torch.equal(getattr(back, name), getattr(bank, name))
        assert getattr(back, name).dtype == getattr(bank, name).dtype
    assert back.scales is None
    assert (back.class_names, back.cosine_scale, back.info) == (
        bank.class_names,
        bank.cosine_scale,
        bank.info,
    )


def test_a_bank_without_base_weights_comes_back(tmp_path: Path) -> None:
    FeatureBank.build(torch.ones(2, 3), [0, 1], ["é", "日本"], "novel").save(tmp_path / "bank")
    back = FeatureBank.open(tmp_path / "bank")
    assert back.base_weights is None
    assert back.cosine_scale is None
    assert back.class_names == ("é", "日本")


@pytest.mark.parametrize(("encoding", "atol"), [("float16", 1e-3), ("int8", 1e-2)])
def test_smaller_encodings_are_close_and_smaller(
    bank: FeatureBank, tmp_path: Path, encoding: Encoding, atol: float
) -> None:
    bank.save(tmp_path / "bank", dtype=encoding)
    back = FeatureBank.open(tmp_path / "bank")
    assert str(back.features.dtype) == f"torch.{encoding}"
    for part in Part:
        torch.testing.assert_close(back.select(part).features, bank.select(part).features, atol=atol, rtol=0)


def test_int8_saved_again_stays_as_it_is(bank: FeatureBank, tmp_path: Path) -> None:
    bank.save(tmp_path / "one", dtype="int8")
    one = FeatureBank.open(tmp_path / "one")
    one.save(tmp_path / "two", dtype="int8")
    two = FeatureBank.open(tmp_path / "two")
    assert torch.equal(one.features, two.features)
    assert torch.equal(one.scales, two.scales)  # type: ignore[arg-type]
    one.save(tmp_path / "three", dtype="float32")
    three = FeatureBank.open(tmp_path / "three").select(Part.NOVEL)
    assert torch.equal(three.features, one.select(Part.NOVEL).features)


def test_the_manifest_says_what_is_there(bank: FeatureBank, tmp_path: Path) -> None:
    bank.save(tmp_path / "bank", dtype="int8")
    manifest = json.loads((tmp_path / "bank" / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["dtype"]) == ("wdae-feature-bank", 1, "int8")
    assert manifest["tensors"]["features"] == {"shape": [len(bank.labels), 16], "dtype": "int8"}
    assert manifest["parts"]["novel"] == {"classes": 3, "images": sum(bank.counts(Part.NOVEL))}
    assert manifest["files"].keys() == {"bank.safetensors"}
    assert sorted(p.name for p in (tmp_path / "bank").iterdir()) == ["bank.safetensors", "manifest.json"]


def test_a_bank_can_be_moved_and_read_only(bank: FeatureBank, tmp_path: Path) -> None:
    bank.save(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    for path in (tmp_path / "two").iterdir():
        path.chmod(0o444)
    assert FeatureBank.open(tmp_path / "two", verify=False).n_base == 6
