"""The guides, run block by block as a reader would."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import DOCS, run_page

GUIDES = sorted((DOCS / "guides").glob("*.md"))


def test_there_are_guides() -> None:
    assert {guide.stem for guide in GUIDES} >= {
        "embeddings",
        "pictures",
        "pipeline",
        "deploy",
        "five-photos",
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    run_page(guide)
