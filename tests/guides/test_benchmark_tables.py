"""Tables of guides are those of the benchmarks' records."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("backbone_sides", "common", "export", "lite"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def record(name: str) -> dict[str, object]:
    read: dict[str, object] = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    return read


def test_exports_and_starting() -> None:
    import export

    for guide, text in export.show(record("export-cpu")).items():
        assert guide.read_text(encoding="utf-8") == text


def test_lite() -> None:
    import export
    import lite

    guide = export.GUIDES / "backbones.md"
    shown = lite.table(record("lite-cpu"))
    assert guide.read_text(encoding="utf-8") == export.between(guide, "lite", shown)


def test_sides() -> None:
    import backbone_sides
    import export

    guide = export.GUIDES / "backbones.md"
    shown = backbone_sides.table(record("backbone-sides"))
    assert guide.read_text(encoding="utf-8") == export.between(guide, "sides", shown)
