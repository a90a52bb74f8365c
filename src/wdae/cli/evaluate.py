"""``wdae evaluate``: measure methods on episodes of a bank, or a model on labelled pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from wdae.cli.options import Csv, Device, Json
from wdae.errors import ModelError
from wdae.printing import json_text, say


def evaluate(
    *methods: str,
    bank: Path | None = None,
    protocol: Literal["few-way", "all-way"] = "few-way",
    shots: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1, 5),
    ways: int = 5,
    queries: int = 15,
    episodes: int | None = None,
    seed: int = 0,
    device: Device = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Measure methods on novel and base classes, on the same episodes: wdae evaluate runs/gnn --bank DIR.

    Novel: novel queries among novel classes. Base: base queries among base classes. All: both among all
    classes. The initial estimate is measured beside, and gains over it are paired, episode by episode.

    Without --bank, measure a model of wdae learn on labelled pictures or features: wdae evaluate model DIR.
    It shows a table per class, and base accuracy before and after classes were added; --output gets the
    confusion matrix too.

    Parameters
    ----------
    methods
        Run folders of wdae train, method files (model.safetensors), or names of methods without parameters.
        Without --bank: a model and a folder with a folder of pictures per class.
    bank
        The feature bank to draw episodes from.
    protocol
        few-way: a few novel classes an episode; all-way: all of them at once.
    shots
        Numbers of shots.
    ways
        Novel classes of an episode (few-way).
    queries
        Queries a novel class (few-way).
    episodes
        How many; 20,000 few-way or 100 all-way by default, as in the paper.
    seed
        Which episodes.
    precision
        Of the denoiser's matrix products; auto: bfloat16 where the hardware computes in it.
    output
        Folder for result files (JSON with per-episode values).
    """
    if bank is None:
        _evaluate_model(methods, output, json, csv)
        return
    from wdae import api
    from wdae.evaluation.text_table import show

    table = api.evaluate(
        methods,
        bank,
        protocol=protocol,
        shots=shots,
        ways=ways,
        queries=queries,
        episodes=episodes,
        seed=seed,
        device=device,
        precision=precision,
    )
    if output is not None:
        table.save(output)
    if json:
        print(table.json())
    elif csv:
        print(table.csv(), end="")
    else:
        show(table.accuracies(), *([table.differences("initial-estimate")] if methods else []))


def _evaluate_model(words: Sequence[str], output: Path | None, json: bool, csv: bool) -> None:
    """Classify labelled pictures or features with a model, and print the table per class and the figures."""
    from rich.console import Console

    from wdae.classifier.inputs import read_examples
    from wdae.classifier.predictions import measure
    from wdae.classifier.store import is_model, load
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
        Console().print(found.rich())
        for key, value in found.figures.items():
            say(f"{key.replace('_', ' ')}: {value:.3f}")
