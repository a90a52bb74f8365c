"""Run the code blocks of a Markdown page as a reader would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from wdae.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Language, code and line of each block of Python or shell."""
    text = page.read_text(encoding="utf-8")
    return [(*block.groups(), text.count("\n", 0, block.start()) + 1) for block in BLOCK.finditer(text)]


def commands(code: str) -> list[list[str]]:
    """The words of each command of a shell block; a backslash joins lines, ``#`` starts a comment."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_command(words: Sequence[str], more: Sequence[str] = ()) -> None:
    """``wdae ...``, in this process; ``more`` words make a long one short."""
    assert words[0] == "wdae", words
    with pytest.raises(SystemExit) as left:
        main([*words[1:], *more])
    assert not left.value.code, words


def run_page(page: Path, more: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Run every block, Python in one namespace, which is returned; ``more`` holds words for some commands."""
    names: dict[str, Any] = {"__name__": page.stem}
    found = blocks(page)
    assert found
    for language, code, line in found:
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), names)
            continue
        for words in commands(code):
            run_command(words, (more or {}).get(words[1], ()))
    return names
