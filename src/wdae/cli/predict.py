"""``wdae predict``: classify pictures, or features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="predict", help_format="markdown")


@app.default
def predict(
    model: Path,
    sources: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    *,
    top: int = 1,
    json: bool = False,
    false_alarms: float = 0.05,
    skip_broken: bool = False,
) -> None:
    """Classify pictures: wdae predict model a.jpg photos/ --top 5.

    One line a picture: its name, then classes with their probabilities; "unknown" first where it resembles no
    class. Any number of pictures passes through; they are not held in memory.

    Parameters
    ----------
    model
        The model's folder.
    sources
        Pictures, folders of pictures, or files of features.
    top
        Classes to show.
    json
        One JSON object a line.
    false_alarms
        Share of base pictures that may be called unknown wrongly; 0 turns it off.
    skip_broken
        Leave unreadable pictures out.
    """
    from wdae.classifier.inputs import stream_items
    from wdae.classifier.predictions import predictions
    from wdae.classifier.store import load

    opened = load(model)
    for names, features in stream_items(opened, sources, skip_broken=skip_broken):
        for name, found in zip(names, predictions(opened, features, top, false_alarms), strict=True):
            print(found.as_json(name) if json else found.as_line(name))
