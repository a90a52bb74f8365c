"""For the API pages: doctests of a docstring become its Examples section, so that they are shown as code."""

from __future__ import annotations

from typing import Any

import griffe


def with_examples(text: str) -> str:
    """Put a heading before the first ``>>>`` and indent what follows.

    >>> print(with_examples("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    Examples:
        >>> 1 + 1
        2
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(">>>")), None)
    if first is None:
        return text
    return "\n".join([*lines[:first], "Examples:", *(f"    {line}".rstrip() for line in lines[first:])])


class DoctestExamples(griffe.Extension):
    """Applied to every object that the pages show."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)
