"""What a benchmark of the paper consists of: rows, the tables they stand in, and the features they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["whole", "held-out", "trainval"]
"""Which model of stage 1: of every base picture, with some held out, or of base and validation classes."""

ROLES: tuple[Role, ...] = ("whole", "held-out", "trainval")
REFERENCE = "initial-estimate"
"""The row that paired gains are taken over."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        name: of its recipe's file, of its folder and of its results.
        label: what tables call it.
        optional: left out without a word where its recipe is missing.
        steps_from: the row whose ε it takes, where its own features leave no classes to choose ε on.
        curves: whether it is in the plots.
    """

    name: str
    label: str
    optional: bool = False
    steps_from: str | None = None
    curves: bool = False


@dataclass(frozen=True)
class Table:
    """One table of the paper, or the part of one that needs the same features.

    Args:
        number: in the paper; None for a table of ours.
        title: what it measures.
        roles: features it is measured on, in order of preference: the first that is there is taken.
        rows: names, the initial estimate first.
        metrics: what the paper gives, under our names.
        ours: rows of ours alone, which the paper does not have here.
    """

    number: int | None
    title: str
    roles: tuple[Role, ...]
    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    ours: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """A data set of the paper with everything it reports on it.

    Args:
        name: of its layout and of the folder of its recipes.
        title: its name for people.
        protocol: few-way or all-way.
        shots: of the tables.
        episodes: of the tables, as in the paper.
        stage1: the recipe of stage 1.
        rows: all rows, in the order they are run in.
        tables: what to print.
        top5: whether the paper's figures are top-5.
        half_of_base: whether the split names the base classes whose pictures are test queries.
    """

    name: str
    title: str
    protocol: Literal["few-way", "all-way"]
    shots: tuple[int, ...]
    episodes: int
    stage1: str
    rows: tuple[Row, ...]
    tables: tuple[Table, ...]
    top5: bool = False
    half_of_base: bool = False

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)
