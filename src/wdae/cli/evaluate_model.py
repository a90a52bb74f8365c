"""``wdae evaluate MODEL DIR``: the half of ``wdae evaluate`` that is about models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wdae.errors import ModelError
from wdae.printing import json_text


def evaluate_model(words: Sequence[str], *, output: Path | None, json: bool, csv: bool) -> None:
    """Classify labelled pictures (or features) and print the per-class table and the figures."""
    from rich.console import Console

    from wdae.classifier.inputs import read_examples
    from wdae.classifier.manifest import is_model
    from wdae.classifier.measure import measure
    from wdae.classifier.store import load
    from wdae.storage.files import write_text
    from wdae.storage.records import write_json

    if not words or not is_model(words[0]):
        raise ModelError(
            "give a feature bank to draw episodes from with --bank, or a model and a folder of labelled"
            " pictures: wdae evaluate MODEL DIR"
        )
    if len(words) != 2:
        raise ModelError(f"a model is evaluated on one folder or file of features, got {len(words) - 1}")
    model = load(words[0])
    found = measure(model, read_examples(model, [Path(words[1])], None).features)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "evaluation.json", found.as_json())
        write_text(output / "confusion.csv", found.csv())
    if json:
        print(json_text(found.as_json(), indent=2))
    elif csv:
        print(found.csv(), end="")
    else:
        console = Console()
        console.print(found.rich())
        for key, value in found.figures.items():
            console.print(f"{key.replace('_', ' ')}: {value:.3f}", highlight=False)
