"""``wdae info``: what a model knows, and what happened to it."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from wdae.printing import json_text

app = App(name="info", help_format="markdown")


@app.default
def info(model: Path, *, json: bool = False) -> None:
    """Show a model's classes, shots, history, sizes and figures, and check its files.

    Parameters
    ----------
    model
        The model's folder.
    json
        Print JSON instead of tables.
    """
    from wdae.classifier.store import load
    from wdae.classifier.summary import print_summary, summary

    facts = summary(load(model), model)
    if json:
        print(json_text(facts, indent=2))
    else:
        print_summary(facts)
