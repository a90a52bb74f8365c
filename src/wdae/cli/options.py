"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

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
SkipBroken = Annotated[bool, Parameter(help="Leave unreadable pictures out; without, they are an error.")]
"""What becomes of pictures that cannot be decoded."""
Device = Annotated[str, Parameter(help="auto (a GPU if there is one), cpu, cuda, cuda:1, ...")]
"""Where to compute."""
Model = Annotated[Path, Parameter(help="The model's folder, as wdae learn makes it.")]
"""A practitioner's model."""
Patience = Annotated[float, Parameter(help="Seconds to wait while another process changes the model.")]
"""How long to wait for a lock."""


def shown_default(value: Any) -> str | None:
    """A default as one would type it; nothing for a flag that is off and for what is not given.

    >>> shown_default((1, 5)), shown_default("auto"), shown_default(False)
    ('1 5', 'auto', None)
    """
    if value is None or value is False or value == ():
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
