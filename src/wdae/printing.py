"""Text from files and folders, made fit to be shown: on a terminal, in JSON, CSV, Markdown and plots.

Names of classes and files come from strangers. A name may hold terminal escapes, line breaks, marks that turn
the reading direction, or a spreadsheet formula; whatever prints one passes it through here first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.text import Text

_JOINERS = "\u200c\u200d\u00a0\u3000"  # in Persian, Hindi and emoji, and the wide spaces: harmless and common
_FORMULA = tuple("=+-@\t\r＝＋－＠")


def printable(text: object, keep: str = "") -> str:
    r"""The text with everything that is not a visible letter or a space written as an escape.

    Args:
        text: a name, a path, a message.
        keep: letters to leave as they are, such as the line breaks of a message in several lines.

    >>> print(printable("red\x1b[31m\nnew line"))
    red\x1b[31m\nnew line
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or c in _JOINERS else _escape(c) for c in text)


def say(line: object = "", *, to: TextIO | None = None) -> None:
    """Print one line, escaped: on stdout unless told otherwise."""
    print(printable(line), file=sys.stdout if to is None else to, flush=True)


def warn(line: object) -> None:
    """Print one line, escaped, on stderr."""
    say(line, to=sys.stderr)


def json_text(value: Any, indent: int | None = None) -> str:
    r"""JSON that a terminal may show: letters as they are, all that is invisible as ``\uXXXX``.

    >>> print(json_text({"name": "é\x9b"}))
    {"name": "é\u009b"}
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n" or c in _JOINERS else json.dumps(c)[1:-1] for c in text)


def cell(text: object) -> Text:
    """A cell or a title of a rich table: escaped, and markup such as ``[bold]`` stays the letters it is."""
    from rich.text import Text

    return Text(printable(text))


def csv_cell(value: Any) -> Any:
    """A cell for the csv module: text that a spreadsheet would run as a formula gets a leading apostrophe.

    >>> csv_cell("=1+1"), csv_cell(-0.5), csv_cell("okapi")
    ("'=1+1", -0.5, 'okapi')
    """
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA) else "") + printable(value)


def markdown_cell(text: object) -> str:
    r"""A cell of a Markdown table: no line breaks, no column marks, no HTML, no links.

    >>> print(markdown_cell("a|b <img>"))
    a\|b &lt;img>
    """
    shown = printable(text).replace("<", "&lt;")
    return "".join(f"\\{c}" if c in "|`[]" else c for c in shown)


def markdown_table(head: Sequence[str], body: Iterable[Sequence[str]], left: Sequence[str] = ()) -> list[str]:
    """The lines of a Markdown table; columns not called one of ``left`` are aligned to the right.

    >>> markdown_table(["class", "count"], [["okapi", "5"]], left=["class"])
    ['| class | count |', '| --- | ---: |', '| okapi | 5 |']
    """
    rule = ["---" if name in left else "---:" for name in head]
    lines = [head, rule, *([markdown_cell(text) for text in row] for row in body)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def counted(n: int, noun: str, more: str = "") -> str:
    """A number with its noun: ``more`` is the plural where an s does not make it.

    >>> counted(1, "example"), counted(1200, "picture"), counted(2, "class", "classes")
    ('1 example', '1,200 pictures', '2 classes')
    """
    return f"{n:,} {noun if n == 1 else more or noun + 's'}"


def size_text(n_bytes: int) -> str:
    """A size for people.

    >>> size_text(11_707_218), size_text(5_864), size_text(12)
    ('11.7 MB', '5.9 kB', '12 bytes')
    """
    if n_bytes < 1000:
        return f"{n_bytes} bytes"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else f"{n_bytes / 1e3:.1f} kB"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
