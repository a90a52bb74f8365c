"""Options that several commands share, each defined once."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from wdae.classifier.names import GROUPS
from wdae.errors import DataError, ModelError
from wdae.storage.manifest import absent

Output = Annotated[Path, Parameter(name=["--output", "-o"], help="The run folder to make.")]
"""The run folder of a command that makes one."""
NewBank = Annotated[
    Path, Parameter(name=["--output", "-o"], help="The bank to make: a folder that does not exist.")
]
"""The feature bank that a command writes."""
Json = Annotated[bool, Parameter(help="Print JSON.")]
"""Machine-readable output."""
Csv = Annotated[bool, Parameter(help="Print CSV.")]
"""Output for spreadsheets."""
Resume = Annotated[bool, Parameter(help="Go on with the run in the output folder, from its last checkpoint.")]
"""Continue an interrupted run."""
Force = Annotated[bool, Parameter(help="Write over an existing run folder.")]
"""Replace a run."""
Strict = Annotated[
    bool, Parameter(help="Pictures that cannot be read are an error; without, they are left out and named.")
]
"""What becomes of pictures that cannot be decoded."""
SkipBroken = Annotated[bool, Parameter(show=False)]
"""What it was called when they were an error by default; accepted still."""
Device = Annotated[str, Parameter(help="auto (a GPU if there is one), cpu, cuda, cuda:1, ...")]
"""Where to compute."""
Model = Annotated[Path, Parameter(help="The model's folder, as wdae learn makes it.")]
"""A practitioner's model."""
Patience = Annotated[float, Parameter(help="Seconds to wait while another process changes the model.")]
"""How long to wait for a lock."""

Expect = Annotated[
    str | None,
    Parameter(
        help="How many of the pictures are expected to be of added classes: new=0.2 is one in five. Without,"
        " as wdae set has it, by default so few that base classes lose little."
    ),
]
"""How often new things are expected."""
Only = Annotated[
    list[str] | None,
    Parameter(
        help="The classes that come into question: added, base, or names (--only a,b). Each is as likely as"
        " another, unless --expect is given.",
        negative=(),
    ),
]
"""Some classes alone."""


def check_model(model: Path) -> None:
    """Refuse, before torch is loaded, what is no model as far as its files go."""
    if model.suffix == ".onnx" and model.is_file():
        raise ModelError(
            f"{model} is an export, which onnxruntime runs (docs/guides/deploy.md); for a model to ask and"
            f" change: wdae learn --from {model} -o MODEL"
        )
    if not os.path.lexists(model / "model.json"):
        raise absent(model, "model.json", "a model", "; make one with: wdae learn -o MODEL")


def check_bank(bank: Path | str) -> None:
    """Refuse, before torch is loaded, what is no feature bank as far as its files go."""
    if str(bank) != "embedded" and not os.path.lexists(Path(bank) / "manifest.json"):
        remedy = "; make one with `wdae extract` or `wdae bank import`"
        raise absent(Path(bank), "manifest.json", "a feature bank", remedy)


def check_sources(sources: Sequence[Path]) -> list[Path]:
    """What is given, with patterns such as ``*.jpg`` replaced by what they match, where no shell did so.

    >>> check_sources([Path("no/such/picture.jpg")])
    Traceback (most recent call last):
    ...
    wdae.errors.DataError: no/such/picture.jpg does not exist
    """
    found: list[Path] = []
    for source in (source.expanduser() for source in sources):
        if os.path.lexists(source) or not has_magic(str(source)):
            found.append(source)
        elif matched := sorted(Path(name) for name in glob(str(source), recursive=True)):  # noqa: PTH207
            found += matched
        else:
            raise DataError(f"no file or folder matches {source}")
    missing = [source for source in found if not source.exists()]
    if missing:
        others = f"; {len(missing)} are missing in all" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]} does not exist{others}")
    return found


def parse_share(word: str | None, option: str = "--expect new=0.2") -> float | None:
    """The share of pictures in a word such as ``new=0.2`` or ``0.2``.

    >>> parse_share("new=0.2")
    0.2
    """
    if word is None:
        return None
    try:
        share = float(word.removeprefix("new="))
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ModelError(f"the share of new things lies between 0 and 1, got {word!r}; write {option}")
    return share


def parse_only(words: Sequence[str] | None, names: Collection[str]) -> str | list[str] | None:
    """What ``--only`` means for a model with classes of these names, which may have commas.

    >>> parse_only(["a,b", "salt, pepper"], ["a", "b", "salt, pepper"])
    ['a', 'b', 'salt, pepper']
    """
    if not words:
        return None
    if len(words) == 1 and words[0] in GROUPS:
        return words[0]
    return [
        part.strip()
        for word in words
        for part in ([word] if word in names else word.split(","))
        if part.strip()
    ]


def refuse_two_forms(json: bool, csv: bool) -> None:
    """Refuse ``--json`` together with ``--csv``: output has one form."""
    if json and csv:
        raise ModelError("output is in one form; give --json or --csv")


def shown_default(value: Any) -> str | None:
    """A default as one would type it; nothing for a flag that is off and for what is not given.

    >>> shown_default((1, 5)), shown_default("auto"), shown_default(False)
    ('1 5', 'auto', None)
    """
    if value is None or value is False or value == ():
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
