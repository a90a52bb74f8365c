"""``wdae predict``, ``wdae info`` and ``wdae explain``: commands that ask a model something."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.cli.options import Json, Model, SkipBroken
from wdae.printing import json_text, say


def predict(
    model: Model,
    /,
    *sources: Path,
    top: int = 1,
    json: Json = False,
    false_alarms: float = 0.05,
    skip_broken: SkipBroken = False,
) -> None:
    """Classify pictures: wdae predict model a.jpg photos/ --top 5.

    One line a picture: its name, then classes with their probabilities; "unknown" first where it resembles no
    class. With --json, one object a line. Any number of pictures streams through.

    Parameters
    ----------
    sources
        Pictures, folders of pictures, or files of features.
    top
        Classes to show.
    false_alarms
        Share of base pictures that may be called unknown wrongly; 0 turns it off.
    """
    from wdae.classifier.inputs import stream_items
    from wdae.classifier.predictions import predictions
    from wdae.classifier.store import load

    opened = load(model)
    for names, features in stream_items(opened, sources, skip_broken=skip_broken):
        for name, found in zip(names, predictions(opened, features, top, false_alarms), strict=True):
            print(found.as_json(name) if json else found.as_line(name))


def info(model: Model, /, *, json: Json = False) -> None:
    """Show a model's classes, shots, history, sizes and figures, and check its files."""
    from wdae.classifier.store import load
    from wdae.classifier.summary import print_summary, summary

    facts = summary(load(model), model)
    if json:
        print(json_text(facts, indent=2))
    else:
        print_summary(facts)


def explain(
    model: Model,
    class_name: Annotated[str, Parameter(name="CLASS")],
    /,
    *,
    picture: Path | None = None,
    json: Json = False,
) -> None:
    """Show what a model made of a class, and what it may be confused with.

    Its neighbours in the class graph, how far refinement moved its weight, the classes it may be confused
    with, and its examples. Warns where it nearly coincides with another class, or where one of its examples
    looks out of place.

    Parameters
    ----------
    class_name
        A base class or an added one.
    picture
        Draw it to this file as well (a .png, with a .svg beside it).
    """
    from wdae.classifier.explain import explain as explained
    from wdae.classifier.store import load

    opened = load(model)
    found = explained(opened, class_name)
    print(json_text(found.as_json(), indent=2) if json else found.as_text())
    if picture is not None:
        from wdae.classifier.explain import explanation_plot

        for path in explanation_plot(opened, found, picture.parent, picture.stem):
            say(path)
