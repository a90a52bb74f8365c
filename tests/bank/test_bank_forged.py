"""Banks of strangers, their checksums recomputed."""

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_mutations import seal

from wdae.bank import FeatureBank
from wdae.errors import WdaeError
from wdae.synthetic import synthetic_bank


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    synthetic_bank(6, 2, 3, 8, 4, held_out_per_class=2).save(tmp_path / "bank")
    return tmp_path / "bank"


def forge(bank: Path, change: dict[str, Any]) -> None:
    file = bank / "manifest.json"
    file.write_text(json.dumps(seal(json.loads(file.read_text()) | change)))


WRONG = [None, True, -1, 2**80, 1.5, "x", "x" * 5_000, [], [[]], {}, {"a": None}]
KEYS = (
    "version",
    "written_by",
    "dtype",
    "dim",
    "images",
    "parts",
    "tensors",
    "cosine_scale",
    "info",
    "class_names",
)


@pytest.mark.parametrize("key", [*KEYS, "files"])
def test_any_value_of_any_key_is_refused_or_harmless(bank: Path, key: str) -> None:
    whole = (bank / "manifest.json").read_text()
    for wrong in WRONG:
        (bank / "manifest.json").write_text(whole)
        forge(bank, {key: wrong})
        said = ""
        try:
            FeatureBank.open(bank)
        except WdaeError as error:
            said = str(error)
        assert len(said) < 2_000
        assert said or key in ("info", "cosine_scale", "written_by", "images", "parts")  # for people only


@pytest.mark.parametrize(
    "name", ["../bank.safetensors", "/etc/passwd", ".hidden", "a/b", "x" * 5_000, "", "\x1b[2J"]
)
def test_names_that_are_no_plain_names(bank: Path, name: str) -> None:
    entry = json.loads((bank / "manifest.json").read_text())["files"]["bank.safetensors"]
    forge(bank, {"files": {name: entry}})
    with pytest.raises(WdaeError) as error:
        FeatureBank.open(bank)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("verify", [True, False])
def test_a_link_in_place_of_the_tensors(bank: Path, verify: bool) -> None:
    (bank / "bank.safetensors").rename(bank.parent / "elsewhere")
    (bank / "bank.safetensors").symlink_to(bank.parent / "elsewhere")
    with pytest.raises(WdaeError, match="is a link"):
        FeatureBank.open(bank, verify=verify)
