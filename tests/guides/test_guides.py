"""The guides, run block by block as a reader would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from wdae.classifier.embedded import BACKBONE, READY
from wdae.cli.main import main

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    if guide.stem == "five-photos" and not (BACKBONE / READY).is_dir():
        pytest.skip("this checkout has no trained backbone inside")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    text = guide.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": guide.stem}
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        language, code = block.groups()
        if language == "python":
            line = text.count("\n", 0, block.start()) + 1
            exec(compile("\n" * line + code, str(guide), "exec"), names)
            continue
        for command in code.strip().splitlines():
            program, *words = shlex.split(command)
            assert program == "wdae", command
            with pytest.raises(SystemExit) as left:
                main(words)
            assert not left.value.code, command
