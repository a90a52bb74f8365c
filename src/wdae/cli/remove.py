"""``wdae remove``: take added classes out of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wdae.printing import say

app = App(name="remove", help_format="markdown")


@app.default
def remove(
    model: Path,
    classes: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    *,
    patience: float = 60.0,
) -> None:
    """Take added classes out of a model; wdae undo brings them back.

    Parameters
    ----------
    model
        The model's folder.
    classes
        Names of classes that were added.
    patience
        Seconds to wait while another process changes the model.
    """
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        changed.remove(classes)
    say(f"{model}: {len(changed.names)} classes ({len(changed.added)} added)")
