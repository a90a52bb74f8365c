"""The figures of the guide to scale are those of its records."""

from __future__ import annotations

from make_scale_guide import PAGE, PLOT, page, records


def test_the_guide_has_the_figures_of_its_records() -> None:
    text, found = PAGE.read_text(encoding="utf-8"), records()
    assert "scale-gpu" in found and PLOT.is_file()
    assert page(text, found) == text
    found["scale-gpu"]["rows"][0]["graph_s"] = 12345.0
    assert "1.23e+04" in page(text, found)
