import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from wdae.config import Config
from wdae.evaluation.html import write_report
from wdae.evaluation.results import Result
from wdae.runs.run import Run


class Recipe(Config):
    title: str = "<script>alert('recipe')</script>"
    seed: int = 5


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains when tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def results(run: Run) -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0.4, 0.6, 40)
    for method, shift in (("initial", 0.0), ("wdae-<gnn>", 0.02), ("worse", -0.03), ("same", 0.0)):
        noise = rng.normal(0, 0.01, 40)
        Result.of(
            {"novel": first + shift + (noise if method != "initial" else 0)},
            method=method,
            protocol="few-way",
            n_way=5,
            n_shot=1,
            seed=0,
        ).save(run.results)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "my & run", Recipe(), command=["wdae", "train", "<b>"])
    for step in range(5):
        run.log(step=step, loss=1 / (step + 1))
    results(run)
    return run


def test_the_report_is_one_page_that_asks_nothing_of_the_network(run: Run) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra wdae[plot]")
    page = Page(write_report(run).read_text())
    assert not {"script", "link", "iframe", "a", "object"} & set(page.tags)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == 2
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "url(" not in run.report.read_text()
    assert any("default-src 'none'" in value for _, value in page.attributes)


def test_text_is_escaped(run: Run) -> None:
    page = Page(write_report(run).read_text())
    assert "<script>alert('recipe')</script>" in page.text
    assert "wdae-<gnn>" in page.text
    assert "my & run" in page.text
    assert "wdae train <b>" in page.text


def test_results_and_paired_gains_are_those_of_the_files(run: Run) -> None:
    text = write_report(run).read_text()
    for path in run.results.glob("*.json"):
        assert str(Result.load(path).metrics["novel"]) in text
    gains = re.findall(r'<td class="(\w+)">([+-][\d.]+) ± [\d.]+</td>', text)
    assert [kind for kind, _ in gains] == ["gain", "loss"]
    assert [round(float(value)) for _, value in gains] == [2, -3]
    assert "Gain over initial" in text


def test_another_baseline(run: Run) -> None:
    page = Page(write_report(run, baseline="worse").read_text())
    assert "Gain over worse" in page.text


def test_a_run_without_results_or_metrics_has_a_report_too(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe())
    page = Page(write_report(run).read_text())
    assert "no results yet" in page.text
    assert "img" not in page.tags


def test_plots_of_others_are_embedded_after_ours(run: Run) -> None:
    (run.plots / "own.png").write_bytes(b"\x89PNG not really")
    text = write_report(run).read_text()
    assert "<figcaption>own</figcaption>" in text
    assert text.index("Training:") < text.index("<figcaption>own</figcaption>")


def test_without_matplotlib_the_report_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = Page(write_report(run).read_text())
    assert "pip install 'wdae[plot]'" in page.text
    assert "Gain over initial" in page.text
