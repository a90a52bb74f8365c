"""``wdae explain``: what a model made of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wdae.printing import json_text, say

app = App(name="explain", help_format="markdown")


@app.default
def explain(
    model: Path,
    class_name: Annotated[str, Parameter(name="CLASS")],
    *,
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Show what a model made of a class, and what it may be confused with.

    Its neighbours in the class graph, how far refinement moved its weight, the classes it may be confused
    with, and its examples. Warns where it nearly coincides with another class, or where one of its examples
    looks out of place.

    Parameters
    ----------
    model
        The model's folder.
    class_name
        A base class or an added one.
    picture
        Draw it to this file as well (a .png, with a .svg beside it).
    json
        Print JSON.
    """
    from wdae.classifier.explain import explain as explained
    from wdae.classifier.store import load

    opened = load(model)
    found = explained(opened, class_name)
    if json:
        print(json_text(found.as_json(), indent=2))
    else:
        print(found.as_text())
    if picture is not None:
        from wdae.classifier.explain_plot import explanation_plot

        for path in explanation_plot(opened, found, picture.parent, picture.stem):
            say(path)
