"""One renderer of tables: for a terminal, Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.printing import cell, csv_cell, json_text, markdown_cell, markdown_table, printable
from wdae.storage.files import write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | tuple[str, str]
"""Text, or text with a mark, "gain" or "loss": bold on a terminal, coloured on a page."""


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Args:
        head: the heading of each column; empty for a table without headings.
        rows: the cells.
        title, caption: above and below the table.
        left: headings of the columns that hold words; the others hold numbers and are aligned right.
        sections: heading of the column whose change begins a new section.

    >>> print(TextTable(["method", "novel"], [["wdae-gnn", "62.88"]], caption="In percent.").markdown())
    | method | novel |
    | --- | ---: |
    | wdae-gnn | 62.88 |
    <BLANKLINE>
    In percent.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    caption: str = ""
    left: Collection[str] = ("method", "row")
    sections: str | None = None

    def rich(self) -> Table:
        """The table for a terminal."""
        from rich import box
        from rich.table import Table

        style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
        above, below = (cell(text) if text else None for text in (self.title, self.caption))
        table = Table(title=above, caption=below, padding=(0, 1, 0, 0), **style)
        for name in self.head:
            table.add_column(name, justify="left" if name in self.left else "right", no_wrap=True)
        place = None if self.sections is None else list(self.head).index(self.sections)
        for row, after in zip_longest(self.rows, self.rows[1:]):
            ends = place is not None and after is not None and row[place] != after[place]
            shown = [cell(_text(c)) for c in row]
            for text, c in zip(shown, row, strict=True):
                text.style = "bold" if _mark(c) else ""
            table.add_row(*shown, end_section=ends)
        return table

    def markdown(self) -> str:
        """The table for a document."""
        lines = markdown_table(self.head, [[_text(c) for c in row] for row in self.rows], [*self.left])
        parts = (markdown_cell(self.title), "\n".join(lines), markdown_cell(self.caption))
        return "\n\n".join(part for part in parts if part)

    def html(self) -> str:
        """The table for a page."""
        top = "".join(f"<th>{escape(name)}</th>" for name in self.head)
        body = "".join("<tr>" + "".join(_html_cell(c) for c in row) + "</tr>" for row in self.rows)
        kind = "" if self.head else ' class="left"'
        head = f"<thead><tr>{top}</tr></thead>" if self.head else ""
        return f'<div class="wide"><table{kind}>{head}<tbody>{body}</tbody></table></div>'


class RecordTable(ABC):
    """A table that is flat records for programs and text for people."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Its lines, each with the same keys."""

    @abstractmethod
    def text(self) -> TextTable:
        """The table for people."""

    def csv(self) -> str:
        """One line for each record."""
        return csv_records(self.records())

    def json(self) -> str:
        """A list of the records."""
        return json_records(self.records())

    def markdown(self) -> str:
        """The table for a document."""
        return self.text().markdown() + "\n"

    def write(self, folder: Path, name: str) -> None:
        """``NAME.csv``, ``.json`` and ``.md`` in a folder."""
        for suffix, text in (("csv", self.csv()), ("json", self.json() + "\n"), ("md", self.markdown())):
            write_text(folder / f"{name}.{suffix}", text)


def show(*tables: TextTable) -> None:
    """Print tables on the terminal, each as wide as it needs to be, those without rows left out."""
    from rich.console import Console

    _print(Console(), tables)


def shown(*tables: TextTable) -> str:
    """What :func:`show` prints where there is no terminal, for a document."""
    from rich.console import Console

    text = io.StringIO()
    _print(Console(file=text, width=80), tables)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _print(console: Console, tables: Sequence[TextTable]) -> None:
    from rich.console import Console

    for table in tables:
        if not table.rows:
            continue
        view = table.rich()
        needed = console.measure(view, options=console.options.update(max_width=1000)).maximum
        Console(width=max(console.width, needed), file=console.file).print(view)


def csv_records(records: Sequence[Mapping[str, Any]]) -> str:
    """One line for each record; a value that does not exist is empty."""
    if not records:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(_finite(value)) for key, value in record.items()} for record in records)
    return out.getvalue()


def json_records(records: Sequence[Mapping[str, Any]]) -> str:
    """A list of the records; a value that does not exist is null."""
    return json_text([{key: _finite(v) for key, v in record.items()} for record in records], indent=2)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Cell) -> str:
    return value if isinstance(value, str) else value[0]


def _mark(value: Cell) -> str:
    return "" if isinstance(value, str) else value[1]


def _html_cell(value: Cell) -> str:
    kind = f' class="{_mark(value)}"' if _mark(value) else ""
    return f"<td{kind}>{escape(printable(_text(value)))}</td>"
