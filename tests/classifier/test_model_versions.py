"""Manifests of older versions are upgraded step by step; ``tests/test_old_files.py`` opens real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wdae.classifier.manifest import UPGRADES, VERSION, read_manifest
from wdae.errors import StorageError

V1 = Path(__file__).parents[1] / "fixtures" / "v1" / "models-early"


def test_every_older_version_has_an_upgrade() -> None:
    assert sorted(UPGRADES) == list(range(1, VERSION))


def test_upgrades_run_one_after_the_other(tmp_path: Path) -> None:
    def second(manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest | {"colour": "unknown"}

    def third(manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest | {"colour": manifest["colour"].upper()}

    value = read_manifest(V1, {1: second, 2: third}, newest=3)
    assert value["version"] == 3 and value["colour"] == "UNKNOWN"
    with pytest.raises(StorageError, match="newer than 0"):
        read_manifest(V1, newest=0)
