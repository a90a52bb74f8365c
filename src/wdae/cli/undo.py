"""``wdae undo``: return a model to an earlier state."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from wdae.printing import say

app = App(name="undo", help_format="markdown")


@app.default
def undo(model: Path, *, to: int | None = None, patience: float = 60.0) -> None:
    """Take the last change of a model back; again, the one before it.

    Parameters
    ----------
    model
        The model's folder.
    to
        Return to the state after the change of this number instead (0: as learned); see wdae info.
    patience
        Seconds to wait while another process changes the model.
    """
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        if to is None:
            changed.undo()
        else:
            changed.restore(to)
    at = "as learned" if changed.history.head == 0 else f"after change {changed.history.head}"
    say(f"{model}: {at}; {len(changed.names)} classes ({len(changed.added)} added)")
