"""Files of every version of the format can be read, and are upgraded step by step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from wdae.classifier import changing, load
from wdae.classifier.manifest import UPGRADES, VERSION, read_manifest
from wdae.errors import StorageError

FIXTURES = Path(__file__).parent / "fixtures"


def test_a_model_of_the_first_version_gives_what_it_gave(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "v1", tmp_path / "v1")
    assert json.loads((tmp_path / "v1" / "model.json").read_text())["version"] == 1
    model = load(tmp_path / "v1")
    expected = json.loads((FIXTURES / "v1-expected.json").read_text())
    assert list(model.names) == expected["names"]
    scores = model.scores(torch.tensor(expected["queries"]))
    torch.testing.assert_close(scores, torch.tensor(expected["scores"]), rtol=1e-4, atol=1e-4)
    assert [e.source for e in model.examples_of("okapi")] == ["a.jpg", "b.jpg", ""]
    assert model.backbone is not None and model.backbone.image_size == 84
    with changing(tmp_path / "v1") as model:
        model.restore(0)
    assert json.loads((tmp_path / "v1" / "model.json").read_text())["version"] == VERSION
    assert load(tmp_path / "v1").added == ()


def test_every_older_version_has_an_upgrade() -> None:
    assert sorted(UPGRADES) == list(range(1, VERSION))


def test_upgrades_run_one_after_the_other(tmp_path: Path) -> None:
    def second(manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest | {"colour": "unknown"}

    def third(manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest | {"colour": manifest["colour"].upper()}

    value = read_manifest(FIXTURES / "v1", {1: second, 2: third}, newest=3)
    assert value["version"] == 3 and value["colour"] == "UNKNOWN"
    with pytest.raises(StorageError, match="newer than 0"):
        read_manifest(FIXTURES / "v1", newest=0)
