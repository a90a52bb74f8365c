"""The notebook runs from its first cell to its last, and keeps no output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "compare.ipynb"


def test_every_cell_runs(capsys: pytest.CaptureFixture[str]) -> None:
    book = json.loads(NOTEBOOK.read_text())
    assert book["nbformat"] == 4
    space: dict[str, object] = {"__name__": "notebook"}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), cell["id"], "exec"), space)
    said = capsys.readouterr().out
    for name in ("initial-estimate", "median-shot", "centred-mean", "lda"):
        assert f"| {name} | 1 |" in said
