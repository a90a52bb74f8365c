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


@pytest.mark.parametrize(
    ("used", "needed"), [("import pandas", "pip install pandas"), ("--picture ", "pip install 'wdae[plot]'")]
)
def test_what_a_guide_needs_beside_wdae_stands_there(used: str, needed: str) -> None:
    texts = {guide.stem: guide.read_text(encoding="utf-8") for guide in GUIDES}
    asking = {name: text for name, text in texts.items() if used in text}
    assert asking and all(needed in text for text in asking.values()), list(asking)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    run_page(guide)
