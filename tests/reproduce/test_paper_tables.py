"""The paper's figures in the package are those of its tables, and every row we run finds its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from wdae.evaluation.paper_tables import REPORTED, reported
from wdae.reproduce.benchmark import Benchmark
from wdae.reproduce.benchmarks import BENCHMARKS
from wdae.reproduce.recipes import find_recipe, stage1_recipe

TABLES = Path(__file__).parents[3] / "shared" / "paper" / "tables.yaml"


def test_figures_are_those_of_the_paper() -> None:
    if not TABLES.is_file():
        pytest.skip("the paper's tables are not beside the checkout")
    tables = yaml.safe_load(TABLES.read_text())
    fs = tables["imagenet_fs_top5"]
    for name, number in (("mini-imagenet", 2), ("tiered-imagenet", 4)):
        for row, metrics in REPORTED[name][number].items():
            given = tables[f"{name.replace('-', '_')}_top1"]["rows"][row.replace("-", "_")]
            assert metrics["novel"] == {1: tuple(given["1shot"]), 5: tuple(given["5shot"])}, row
    for row, metrics in REPORTED["mini-imagenet"][3].items():
        given = tables["mini_imagenet_all"]["rows"][row.replace("-", "_")]
        for metric in ("novel", "all"):
            assert metrics[metric] == {k: tuple(given[metric][f"{k}shot"]) for k in (1, 5)}, row
    for row, metrics in REPORTED["imagenet-fs"][1].items():
        given = fs["rows"][row.replace("-", "_")]
        for metric in ("novel", "all"):
            wanted = zip(given[metric], fs["ci95"][metric], strict=True)
            assert metrics[f"{metric}_top5"] == dict(zip(fs["shots"], wanted, strict=True)), row


def test_every_figure_belongs_to_a_row_that_is_run() -> None:
    for name, tables in REPORTED.items():
        known = {row.name for row in BENCHMARKS[name].rows}
        for rows in tables.values():
            assert rows.keys() <= known


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=lambda benchmark: benchmark.name)
def test_every_row_has_its_recipe(benchmark: Benchmark) -> None:
    assert stage1_recipe(benchmark.name, benchmark.stage1).is_file()
    for row in benchmark.rows:
        assert row.optional or row.name == "initial-estimate" or find_recipe(benchmark.name, row.name)
    for table in benchmark.tables:
        assert table.rows[0] == "initial-estimate"
        assert set(table.rows) <= {row.name for row in benchmark.rows}
        for row_name in table.rows[1:]:
            if table.number is None:
                continue
            asked = [(metric, k) for metric in table.metrics for k in benchmark.shots]
            figures = [reported(benchmark.name, table.number, row_name, *one) for one in asked]
            assert all(figures) or not any(figures), row_name
