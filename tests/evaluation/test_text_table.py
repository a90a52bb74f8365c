"""One renderer of tables: the same cells in every form."""

import csv
import io
import json
import math

from rich.console import Console

from wdae.evaluation.text_table import TextTable, csv_records, json_records

TABLE = TextTable(
    ["method", "shots", "gain"],
    [["[bold]a <b>", "1", ("+1.00", "gain")], ["b", "5", ""]],
    title="Gains",
    caption="In points.",
    sections="shots",
)


def test_a_terminal_shows_the_cells_as_they_are() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(TABLE.rich())
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert any(line.startswith("[bold]a <b>") and line.endswith("+1.00") for line in lines)
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(n)) for n in ("[bold]a", "b "))
    assert lines[first + 1 : last] == [""]
    assert "Gains" in lines[0] and "In points." in lines[-1]


def test_markdown_aligns_words_left_and_numbers_right() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "Gains" and lines[-1] == "In points."
    assert lines[2:4] == ["| method | shots | gain |", "| --- | ---: | ---: |"]
    assert len(lines) == 8


def test_html_escapes_and_marks() -> None:
    page = TABLE.html()
    assert "a &lt;b&gt;" in page and '<td class="gain">+1.00</td>' in page
    assert "<thead>" not in TextTable((), [["key", "value"]]).html()


def test_values_that_do_not_exist_are_empty_or_null() -> None:
    records = [{"mean": 0.5, "ci95": math.nan}, {"mean": None, "ci95": 0.1}]
    assert list(csv.reader(io.StringIO(csv_records(records)))) == [["mean", "ci95"], ["0.5", ""], ["", "0.1"]]
    assert json.loads(json_records(records)) == [{"mean": 0.5, "ci95": None}, {"mean": None, "ci95": 0.1}]
    assert csv_records([]) == ""
