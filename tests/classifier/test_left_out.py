"""What could not be read is named, always, and does not stop the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_backbone import paint

from wdae.bank import FeatureBank
from wdae.classifier import load
from wdae.cli.app import run_app
from wdae.cli.main import root

NAME = "tiny_backbone:factory"


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder per class with one torn picture, which the tests find by its name."""
    paint(tmp_path / "photos", ["red", "green", "blue"], 6)
    (tmp_path / "photos" / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_learn(torn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["learn", str(torn / "photos"), "-o", str(torn / "m"), "--backbone", NAME]
    words += ["--method", "initial-estimate"]
    assert run_app(root(), [*words, "--strict"]) == 2
    assert "torn.png" in capsys.readouterr().err
    assert run_app(root(), words) == 0
    assert "left out, cannot be read" in (said := capsys.readouterr().err) and said.count("torn.png") == 1
    assert int(load(torn / "m", trust=NAME).base.counts.sum()) == 18


@pytest.mark.parametrize("stream", [[], ["--stream", "true"]])
def test_extract(torn: Path, stream: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["extract", "--data", str(torn / "photos"), "-o", str(torn / "bank"), "--backbone", NAME, *stream]
    assert run_app(root(), [*words, "--skip-broken", "false"]) == 2
    assert "torn.png" in capsys.readouterr().err
    assert run_app(root(), words) == 0
    assert capsys.readouterr().err.count("torn.png") == 1
    assert len(FeatureBank.open(torn / "bank").labels) == 18
