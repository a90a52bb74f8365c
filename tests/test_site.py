"""The documents as a site: it builds without a warning, opens from disk, and names files that exist."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import draw_architecture
import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import wdae

ROOT = Path(__file__).parents[1]
WRITTEN = ("runs", "site", "plots", "rows", "photos", "images", "model", "backbone", "seeds.md")
BASES = (ROOT / "src" / "wdae", ROOT, ROOT / "docs", ROOT / "tests")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Loads(HTMLParser):
    """What a page makes the browser fetch, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") in ("canonical", "prev", "next"):
            return
        for key in ("src", "href", "srcset", "data"):
            if value := found.get(key):
                (self.links if tag == "a" else self.loaded).append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.run_event("startup", command="build", dirty=False)
    build(config)  # strict: a warning is an error
    return folder


def test_it_opens_from_disk_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        if page.name == "404.html":
            continue
        found = Loads(page.read_text(encoding="utf-8"))
        for target in found.loaded:
            assert not urlsplit(target).netloc, (page, target)
            assert target.startswith("data:") or (page.parent / urlsplit(target).path).is_file(), (
                page,
                target,
            )
        for target in found.links:
            parts = urlsplit(target)
            if parts.path and not parts.scheme:
                assert (page.parent / parts.path).is_file(), (page, target)
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import)[\s\"']*https?:", styles)
    assert (site / "search" / "search_index.js").is_file()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    missing = [name for name in wdae.__all__ if not name.startswith("__") and f'id="wdae.{name}"' not in page]
    assert not missing


def test_the_picture_of_the_layers_is_that_of_the_contract() -> None:
    names = [name for layer in draw_architecture.layers() for name in layer]
    assert set(names) <= draw_architecture.ABOUT.keys()
    drawn = (ROOT / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    assert re.findall(r"font-weight='600'[^>]*>(\w+)<", drawn) == names
    assert draw_architecture.house() == drawn and draw_architecture.way() == (
        ROOT / "docs" / "images" / "data-way.svg"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """``nn/layers.py`` and ``calibration/`` below src/wdae, ``tests/nn`` and ``recipes/`` in the project."""
    if page.stem == "results":
        return  # it tells what was run at the time
    missing = []
    for span in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        if not re.fullmatch(r"[a-z0-9_]+(/[A-Za-z0-9_.-]+)*(\.py|\.md|/)|tests/[\w/]+", span):
            continue
        if span.split("/")[0] in WRITTEN or "my-" in span:
            continue  # what commands write
        if not any((base / span).exists() for base in BASES):
            missing.append(span)
    assert not missing
