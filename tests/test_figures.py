"""What was measured stands in generated blocks only: no figure typed by hand can go stale."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = {
    *(f"docs/{name}.md" for name in ("results", "speed", "adding", "earlier", "tries")),
    "docs/guides/scale.md",
}
"""Written by scripts/make_results.py and make_scale_guide.py; tests compare them with their records."""
BLOCKS = {
    "README.md": ("demo", "results"),
    "docs/guides/deploy.md": ("export",),
    "docs/guides/backbones.md": ("lite", "sides", "starting"),
}
"""What scripts and benchmarks write between marks, ``<!-- demo -->`` to ``<!-- /demo -->``, on each page."""
COUNT = r"(?:\d+(?:[.,]\d+)?|a|an|one|two|three|four|five|six|seven|eight|nine|ten|half an?|several|few)"
FIGURE = re.compile(
    rf"\b{COUNT}\s?(?:%|percent\b|points?\b)"
    r"|(?<![\d.,§])\d\d\.\d{1,2}(?![\d.]| M\b| MB\b|×)"  # an accuracy
    rf"|\b{COUNT} times (?:as (?:fast|quick|slow)|faster|slower|the speed)"
    rf"|\b(?:in|takes?|after|about) {COUNT} (?:second|minute|hour)s?\b"
    rf"|\bgains? (?:about )?{COUNT}\b|\b\d+(?:\.\d+)? ?(?:ms|pictures/s|pictures a second)\b",
    re.I,
)
SETTINGS = (
    "95 % interval",  # what an interval is
    "64 % base, 16 % validation, 20 % novel",  # how classes are drawn
    "(5 % by default)",
    "at most 0.4 % of the",  # of a rounding, by its definition
    "half a point at most: `evaluation.base_drop_limit`",
    "the limit of half a point on what ε may cost",
    "the two points that are meant",  # what ALLOWED stands for
    "of the pictures that get 80 %, about 80 % are what it says",  # what calibrated means
    "'20 % of pictures to be of added classes'",
    "in a second, over ten seconds",  # limits of the service
    "in a second, on average over ten",
    "sleep after about 0.1 ms",  # what SHORT_WAIT amounts to
)


def documents() -> list[Path]:
    """Pages, and the words that stand on generated pages beside the tables of records."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += sorted((ROOT / "results").rglob("*.md"))
    return [page for page in pages if page.relative_to(ROOT).as_posix() not in GENERATED]


def docstrings(file: Path) -> Iterator[str]:
    """Of modules, classes and functions, and what stands below a constant or a key; without examples."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for child in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            text = child.value.value if _is_constant(child) else None
            if isinstance(text, str):
                yield re.sub(r"^ *>>>.*?(?=^\s*$|\Z)", "", text, flags=re.S | re.M)


def _is_constant(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def found(text: str, page: str = "") -> list[str]:
    """Figures in a text that are no settings; blocks that are generated on its page are left out."""
    for block in BLOCKS.get(page, ()):
        text = re.sub(rf"<!-- {block} -->.*?<!-- /{block} -->", "", text, flags=re.S)
    plain = " ".join(text.split())
    for setting in SETTINGS:
        plain = plain.replace(setting, "")
    return [plain[max(0, m.start() - 50) : m.end() + 30] for m in FIGURE.finditer(plain)]


@pytest.mark.parametrize("page", documents(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_document_has_no_figure_of_its_own(page: Path) -> None:
    assert found(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()) == []


@pytest.mark.parametrize(("page", "blocks"), BLOCKS.items())
def test_a_page_has_its_blocks(page: str, blocks: tuple[str, ...]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {*re.findall(r"<!-- (\w+) -->", text)} == {*blocks}


def test_docstrings_have_no_figures() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    texts = ((file.relative_to(ROOT).as_posix(), text) for file in files for text in docstrings(file))
    assert [(name, figures) for name, text in texts if (figures := found(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "novel accuracy is 67.84",
        "costs about two points",
        "three new ones with over 99 percent",
        "a photo in a second",
        "onnxruntime runs it six times as fast",
        "Evaluation gains about a third",
        "answers in 3 ms",
    ],
)
def test_it_would_notice(text: str) -> None:
    assert found(text) != []
    block = f"<!-- results -->\n{text}\n<!-- /results -->"
    assert found(block, "README.md") == []
    assert found(block, "docs/guides/deploy.md") != []
    assert found(block.replace("results", "mine"), "README.md") != []


def test_what_the_readme_says_of_learning_from_base_pictures() -> None:
    """Against wDAE-GNN+ without, among all classes; the words are those of the records."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        "In *all*, learning from them makes no difference at one shot, loses a little at two, and gains at"
        " ten and twenty; at five it makes none on these features and gains on those of the network that"
        " ships."
    ) in text
    said = {1: (0, 0), 2: (-1, -1), 5: (0, 1), 10: (1, 1), 20: (1, 1)}
    for place, name in enumerate(("compare-shots", "compare-shots-embedded")):
        rows = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        found = {(row["method"].split("/")[-1], row["n_shot"]): row["metrics"].get("all") for row in rows}
        for shots, signs in said.items():
            plain, any_shots = (found[f"wdae-gnn-plus{end}", shots] for end in ("", "-any-shots"))
            gain, error = any_shots["mean"] - plain["mean"], max(any_shots["ci95"], plain["ci95"])
            assert (gain > error) - (gain < -error) == signs[place], (name, shots)
