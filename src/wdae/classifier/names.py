"""Names of classes: what may be one, and how one is shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

from wdae.errors import ModelError, nearest
from wdae.printing import printable

UNKNOWN = "unknown"
"""What is said of a picture that resembles no class."""
GROUPS = ("added", "base")
"""What stands for all classes of a kind where classes are named, as in ``--only added``."""
LONGEST = 200
"""Letters of a name; file systems and tables take no more."""

_SEPARATORS = ("/", "\\")


def check_name(name: str, separators: bool = False) -> str:
    """The name itself where it may be a class's, in Unicode's composed form; an error says why not.

    Separators of paths, control characters and over-long names are refused: names become labels in exports,
    lines of output and, in some programs, names of files. ``separators`` lets those of paths pass, for a
    model whose base classes have them.

    >>> check_name("okapi")
    'okapi'
    >>> check_name("a/b")
    Traceback (most recent call last):
    ...
    wdae.errors.ModelError: class name 'a/b' contains '/', which separates folders; use another letter
    """
    if not isinstance(name, str):
        raise ModelError(f"a class name is text, got {name!r} ({type(name).__name__})")
    composed = unicodedata.normalize("NFC", name)
    shown = shorten(composed)
    if not composed.strip():
        raise ModelError(f"class name {shown!r} is empty; give a name of at least 1 letter")
    if len(composed) > LONGEST:
        raise ModelError(f"class name {shown!r} has {len(composed)} letters; at most {LONGEST} are accepted")
    odd = [letter for letter in composed if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")]
    if odd:
        raise ModelError(f"class name {shown!r} contains the control character {odd[0]!r}; leave it out")
    found = has_separator(composed)
    if found and not separators:
        raise ModelError(
            f"class name {shown!r} contains {found!r}, which separates folders; use another letter"
        )
    if folded(composed) == UNKNOWN:
        raise ModelError(
            f"class name {shown!r} is what a picture is called that resembles no class; use another name,"
            " such as 'other'"
        )
    if composed.strip() in GROUPS:
        raise ModelError(
            f"class name {shown!r} means all {composed.strip()} classes, as in --only {composed.strip()}; use"
            " another name"
        )
    if composed in (".", ".."):
        raise ModelError(f"class name {shown!r} means a folder; use another name")
    return composed


def called(name: str, known: Collection[str]) -> str:
    """The known name that is meant: Unicode writes some letters in two ways, and files come with either.

    macOS takes "ö" apart into two code points, keyboards type one. A name that is not known is returned in
    the composed form, which new names get.

    >>> called("Lo\u0308we", ["Löwe"]), called("Löwe", ["Lo\u0308we"]) == "Lo\u0308we"
    ('Löwe', True)
    """
    if name in known or name.isascii():
        return name
    form = unicodedata.normalize("NFC", name)
    return next((one for one in known if unicodedata.normalize("NFC", one) == form), form)


def has_separator(name: str) -> str:
    """The first separator of paths in a name, or nothing."""
    return next((letter for letter in _SEPARATORS if letter in name), "")


def folded(name: str) -> str:
    """What names have in common that people take for one: case, spaces, underscores, Unicode forms aside.

    >>> folded(" Frying_Pan "), folded("ﬁnch")
    ('frying pan', 'finch')
    """
    return " ".join(
        unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split()
    )


def lookalikes(new: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    """Names that people may take for one: each new one with the first that is spelt nearly the same.

    >>> lookalikes(["Lion", "okapi"], ["lion", "frying pan"])
    [('Lion', 'lion')]
    """
    first: dict[str, str] = {}
    for name in known:
        first.setdefault(folded(name), name)
    pairs = [(name, first.setdefault(folded(name), name)) for name in new]
    return [(name, other) for name, other in pairs if name != other]


def shorten(name: str, longest: int = 60) -> str:
    """A name fit for a message or a table.

    >>> shorten("a" * 100, 9)
    'aaaaaaaa…'
    """
    name = printable(name)
    return name if len(name) <= longest else name[: longest - 1] + "…"


def unknown_classes(asked: Iterable[str], known: Sequence[str], what: str, advice: str = "") -> ModelError:
    """The error for names that are no class of ``what``, with advice on what to do about the first."""
    first = next(iter(asked))
    hint = nearest(first, known) or "; none was added yet"
    return ModelError(f"no {what} is called {shorten(first)!r}{advice}{hint}")


def chosen(only: str | Iterable[str], base: Sequence[str], added: Sequence[str]) -> list[str]:
    """The classes that come into question: their names, or ``"added"`` or ``"base"``."""
    known = (*base, *added)
    there = set(known)
    names = list({"added": added, "base": base}.get(only, [only]) if isinstance(only, str) else only)
    names = [name if name in there else called(name, known) for name in names]
    missing = [name for name in names if name not in there]
    if missing:
        raise unknown_classes(missing, known, "class")
    if not names:
        raise ModelError("no classes to choose among; none was added to the model")
    return names


def removable(
    names: Iterable[str], base: Collection[str], added: Sequence[str], done: str = "removed"
) -> list[str]:
    """The classes to remove, each once; a base class and one that is not there are errors.

    Args:
        done: what is to be done with them, for messages.
    """
    known = {*base, *added}
    names = list(dict.fromkeys(called(name, known) for name in names))
    if not names:
        raise ModelError("no classes to remove; name at least one")
    learned = [name for name in names if name in base]
    if learned:
        raise ModelError(
            f"{shorten(learned[0])!r} is a base class, part of what the model was learned from, and cannot"
            f" be {done}; classes that were added can"
        )
    missing = [name for name in names if name not in added]
    if missing:
        raise unknown_classes(missing, added, "added class")
    return names
