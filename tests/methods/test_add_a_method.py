"""The example of docs/add-a-method.md runs as it stands, and passes the shared checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from method_checks import CHECKS

from wdae.methods.registry import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
NAME = "gained-mean"


@pytest.fixture
def example() -> Iterator[str]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    yield code
    METHODS.pop(NAME, None)


def test_the_example_runs_and_passes_the_checks(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.strip().splitlines()) < 40
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert "±" in capsys.readouterr().out
    for check, concerns in CHECKS.items():
        if concerns(NAME):
            check(NAME)
