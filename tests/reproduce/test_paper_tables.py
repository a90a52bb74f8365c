"""The paper's figures in the package are those of its tables, and every row we run finds its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from wdae.config import find_recipe, load, recipe_file
from wdae.evaluation.paper import REPORTED, reported
from wdae.methods import find, names
from wdae.reproduce.benchmarks import BENCHMARKS, Benchmark
from wdae.stage2.config import MetaRecipe


def test_figures_are_those_of_the_paper() -> None:
    paper = yaml.safe_load((Path(__file__).parent / "paper.yaml").read_text())
    intervals = {"novel_top5": (0.21, 0.15, 0.08, 0.06, 0.05), "all_top5": (0.13, 0.10, 0.05, 0.04, 0.03)}
    assert paper.keys() == REPORTED.keys()
    for name, tables in paper.items():
        assert tables.keys() == REPORTED[name].keys()
        for number, rows in tables.items():
            assert rows.keys() == REPORTED[name][number].keys()
            for row, metrics in rows.items():
                for metric, figures in metrics.items():
                    if metric in intervals:
                        figures = zip(figures, intervals[metric], strict=True)
                    shots = (1, 2, 5, 10, 20) if metric in intervals else (1, 5)
                    wanted = dict(zip(shots, map(tuple, figures), strict=True))
                    assert REPORTED[name][number][row][metric] == wanted, (name, number, row)
                assert metrics.keys() == REPORTED[name][number][row].keys()


def test_every_figure_belongs_to_a_row_that_is_run() -> None:
    for name, tables in REPORTED.items():
        known = {row.name for row in (*BENCHMARKS[name].rows, *BENCHMARKS[name].rivals)}
        for rows in tables.values():
            assert rows.keys() <= known


def test_every_system_of_the_papers_tables_is_a_method_with_a_recipe() -> None:
    """The rows that the paper quotes from others, under our names of their methods."""
    for name, benchmark in BENCHMARKS.items():
        for row in benchmark.rivals:
            file = find_recipe(name, row.name)
            assert file is not None
            recipe = load(MetaRecipe, file)
            assert recipe.method == recipe.name == row.name
            find(row.name)
            assert not find(row.name).training_defaults.keys() - recipe.training.model_fields_set, row.name


# The systems of the paper's four tables, as it names them: the method, and for the two that differ in their
# network alone, the recipe that trains it from pictures. Its own variants (ablations, train+val) are rows of
# the same systems.
SYSTEMS = {
    "Prototypical Nets": ("prototypical", None),
    "Matching Networks": ("matching", None),
    "Logistic regression": ("logistic-regression", None),
    "Logistic regression w/ H": ("logistic-regression-h", None),
    "SGM w/ H": ("sgm-h", None),
    "Batch SGM": ("batch-sgm", None),
    "Prototype Matching Nets w/ H": ("prototype-matching-h", None),
    "LwoF": ("lwof-attention", None),
    "LwoF, Conv-4-64": ("lwof-attention", "conv4-lwof"),
    "MAML": ("maml", None),
    "Relation Net": ("relation", None),
    "GNN": ("gnn", None),
    "R2-D2": ("r2d2", None),
    "R2-D2, Conv-4-512": ("r2d2", "conv4-512-r2d2"),
    "TADAM": ("tadam", None),
    "Munkhdalai et al.": ("shifted-neurons", None),
    "SNAIL": ("snail", None),
    "Qiao et al.": ("activations", None),
    "LEO": ("leo", None),
    "Liu et al.": ("tpn", None),
    "SGM, without H": ("sgm", None),  # of the authors that the two rows with H are quoted from
    "initial estimate": ("initial-estimate", None),
    "wDAE-MLP": ("wdae-mlp", None),
    "wDAE-GNN": ("wdae-gnn", None),
}


def test_the_systems_of_the_four_tables_are_methods_with_recipes() -> None:
    """Each has its row in wdae methods, which the shared checks run on, and a recipe in each benchmark."""
    of_rows = {"lwof": "lwof-attention"}
    wanted: dict[str, set[str]] = {}
    for name, tables in REPORTED.items():
        for row in (row for rows in tables.values() for row in rows):
            plain = row if row in names() else row.split("-no")[0].removesuffix("-trainval")
            wanted.setdefault(of_rows.get(plain, plain), set()).add(name)
    assert wanted.keys() | {"sgm"} == {method for method, _ in SYSTEMS.values()}
    for method, from_pictures in SYSTEMS.values():
        assert method in names()
        for name in wanted.get(method, {"imagenet-fs"}) if method != "initial-estimate" else ():
            recipe = "lwof" if method == "lwof-attention" else method
            assert find_recipe(name, recipe) is not None, (name, recipe)
        assert from_pictures is None or find_recipe("mini-imagenet", from_pictures) is not None


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=lambda benchmark: benchmark.name)
def test_every_row_has_its_recipe(benchmark: Benchmark) -> None:
    assert recipe_file(benchmark.stage1, benchmark.name).is_file()
    for row in (*benchmark.rows, *benchmark.rivals):
        assert row.optional or row.name == "initial-estimate" or find_recipe(benchmark.name, row.name)
    for table in benchmark.tables:
        assert table.rows[0] == table.reference
        assert set(table.rows) <= {row.name for row in (*benchmark.rows, *benchmark.rivals)}
        for row_name in table.rows[1:]:
            if table.number is None:
                continue
            row = next(row for row in table.members if row.name == row_name)
            for metric in table.metrics:
                figures = [
                    reported(benchmark.name, table.number, row.paper or row_name, metric, k)
                    for k in benchmark.shots
                ]
                assert all(figures) or not any(figures), row_name
