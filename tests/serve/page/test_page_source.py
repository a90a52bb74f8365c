"""The source of the page: what ships is what it builds, texts lie in one file, nothing points elsewhere."""

from __future__ import annotations

import re
import shutil

import build_page
import pytest

SOURCE = build_page.PAGE / "src"
NO_NODE = "no npm here: install Node 20 or newer (apt-get install nodejs npm)"


@pytest.mark.skipif(shutil.which("npm") is None, reason=NO_NODE)
def test_what_ships_is_what_the_source_builds() -> None:
    try:
        build_page.install()
    except RuntimeError as error:
        if re.search("ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|ENETUNREACH", str(error)):
            pytest.skip(f"npm cannot reach its registry: {error}")
        raise
    assert build_page.check() == []


def test_built_files_name_no_other_host() -> None:
    allowed = ("http://www.w3.org/", "https://svelte.dev/e/")  # a namespace; where Svelte explains its errors
    for file in build_page.BUILT.iterdir():
        found = re.findall(r"""https?://[^\s"'`)<]+""", file.read_text())
        assert [url for url in found if not url.startswith(allowed)] == [], file.name


def test_texts_are_in_one_file() -> None:
    """Between tags of a component stand expressions; words are in texts/."""
    for file in SOURCE.rglob("*.svelte"):
        markup = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", "", file.read_text(), flags=re.DOTALL)
        while (plain := re.sub(r"\{[^{}]*\}", "", markup)) != markup:
            markup = plain
        words = [
            text.strip() for text in re.findall(r">([^<>]*)<", markup) if re.search(r"[A-Za-z]{2}", text)
        ]
        labels = re.findall(r"""\b(?:aria-label|title|placeholder|alt)="([^"]*[A-Za-z][^"]*)\"""", markup)
        assert words + labels == [], file.name
