"""Every error a user can cause. Each message says what came, what is accepted and what to do.

The command line prints such an error as one line and exits with status 2; anything else is a defect of
ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from wdae.printing import printable


class WdaeError(Exception):
    """What all errors below have in common, so that one ``except`` catches them.

    As text it is one line fit for a terminal, whatever the names and paths in it hold.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class BankError(WdaeError):
    """A feature bank, or features given by a user, cannot be used as they are."""


class EpisodeError(WdaeError):
    """Episodes of the asked-for shape cannot be drawn from this bank."""


class DataError(WdaeError):
    """A folder, list or file of pictures is not what its reader accepts."""


class RecipeError(WdaeError):
    """A recipe or an option has an unknown key, a wrong type or a value out of range."""

    def __str__(self) -> str:  # a fault a line
        return printable(Exception.__str__(self), keep="\n")


class StorageError(WdaeError):
    """A file of ours is truncated, altered, of a newer format, or cannot be written."""


class RunError(WdaeError):
    """A run folder exists already, or has nothing to resume from."""


class ModelError(WdaeError):
    """A model does not fit what it is given: another feature size, unknown classes, and so on."""


class MissingExtraError(WdaeError):
    """An optional library is needed for this and is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}; install it with: pip install 'wdae[{extra}]'")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: ``; did you mean 'x'?``, or the accepted names where none is near.

    >>> nearest("hiden", ["hidden", "layers"])
    "; did you mean 'hidden'?"
    """
    names = sorted(known)
    return did_you_mean(name, names) or (f"; known: {listed(names, 50)}" if names else "")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The same where a name is near; else nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def first_line(error: Exception, longest: int = 200) -> str:
    """The first line of what an error of others says, its class where it says nothing.

    >>> first_line(ValueError("not so\\nlong")), first_line(KeyError())
    ('not so', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:longest]


def listed(items: Iterable[str], shown: int = 5) -> str:
    """The first few items, and how many more there are.

    >>> listed(["a", "b", "c"], shown=2)
    'a, b and 1 more'
    """
    names = list(items)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
