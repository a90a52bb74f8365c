"""``wdae evaluate``: measure methods on episodes of a bank, or a model on labelled pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from wdae.cli.options import (
    Csv,
    Device,
    Expect,
    Json,
    Only,
    Strict,
    check_bank,
    check_sources,
    parse_only,
    parse_share,
    refuse_two_forms,
)
from wdae.errors import ModelError
from wdae.printing import counted, json_text, say, warn

_BANK = Group("Options for methods on a bank", sort_key=2)


def evaluate(
    *methods: str,
    expect: Expect = None,
    only: Only = None,
    strict: Strict = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Json = False,
    csv: Csv = False,
    bank: Annotated[Path | None, Parameter(group=_BANK)] = None,
    protocol: Annotated[Literal["few-way", "all-way"], Parameter(group=_BANK)] = "few-way",
    shots: Annotated[tuple[int, ...], Parameter(consume_multiple=True, group=_BANK)] = (1, 5),
    ways: Annotated[int, Parameter(group=_BANK)] = 5,
    queries: Annotated[int, Parameter(group=_BANK)] = 15,
    episodes: Annotated[int | None, Parameter(group=_BANK)] = None,
    seed: Annotated[int, Parameter(group=_BANK)] = 0,
    reference: Annotated[str, Parameter(group=_BANK)] = "initial-estimate",
    split_held_out: Annotated[bool, Parameter(group=_BANK, negative="")] = False,
    device: Annotated[Device, Parameter(group=_BANK)] = "auto",
    precision: Annotated[Literal["auto", "float32", "bfloat16"], Parameter(group=_BANK)] = "auto",
) -> None:
    """Measure your model on labelled pictures, or methods on episodes of a feature bank.

    **Your model**: wdae evaluate model DIR, where DIR has a folder of pictures per class, or is a file of
    features with labels. It shows a table per class, base accuracy before and after classes were added, and
    how base and added classes trade off, from expecting next to nothing new to expecting little else, with
    the area below that curve; where no base pictures are given, on those that the model keeps. --output gets
    the confusion matrix and the whole curve too.

    **Methods, for research**: wdae evaluate runs/gnn --bank DIR measures them on novel and base classes, on
    the same episodes. Novel: novel queries among novel classes. Base: base queries among base classes. All:
    both among all classes. The initial estimate is measured beside, and gains over it, or over the
    --reference, are paired, episode by episode.

    Parameters
    ----------
    methods
        A model and what to measure it on. With --bank: run folders of wdae train, method files
        (model.safetensors), or names of methods without parameters, with options as in lda:shrink=0.9.
    output
        Folder for result files (JSON).
    bank
        The feature bank to draw episodes from, or embedded: the one that ships with the package.
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
    reference
        The method that gains are taken over: a run folder, a method file or a name.
    split_held_out
        Ask only that half of the held-out base pictures on which nothing is fitted where a recipe says
        split_held_out (wdae reproduce mini-imagenet, recipes/compare).
    precision
        Of the denoiser's matrix products; auto: bfloat16 where the hardware computes in it.
    """
    refuse_two_forms(json, csv)
    if bank is None:
        _evaluate_model(methods, output, json, csv, expect, only, strict)
        return
    if expect is not None or only is not None:
        raise ModelError("--expect and --only are for a model: wdae evaluate MODEL DIR; leave --bank out")
    check_bank(bank)
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
        reference=reference,
        split_held_out=split_held_out,
    )
    if output is not None:
        table.save(output)
    if json:
        print(table.json())
    elif csv:
        print(table.csv(), end="")
    else:
        show(
            table.accuracies(),
            *([table.differences(table.results[0].method)] if len(table) > len(shots) else []),
        )


def _evaluate_model(
    words: Sequence[str],
    output: Path | None,
    json: bool,
    csv: bool,
    expect: str | None,
    only: Sequence[str] | None,
    strict: bool,
) -> None:
    """Classify labelled pictures or features with a model, and print the table per class and the figures."""
    if not words or not (Path(words[0]) / "model.json").exists():
        raise ModelError(
            "give a model and a folder of labelled pictures: wdae evaluate MODEL DIR; or, for methods, a"
            " feature bank to draw episodes from: --bank"
        )
    if len(words) != 2:
        raise ModelError(
            f"a model is evaluated on one folder or file of features, got {len(words) - 1}:"
            " wdae evaluate MODEL DIR, where DIR has a folder of pictures per class"
        )
    share, sources = parse_share(expect), check_sources([Path(words[1])])
    from rich.console import Console

    from wdae.classifier.inputs import read_examples
    from wdae.classifier.predictions import FIGURES, PLAIN, given_before, measure, refuse_others
    from wdae.classifier.store import load
    from wdae.data.findings import warn_unreadable
    from wdae.storage.files import write_text
    from wdae.storage.records import write_json

    model = load(words[0])
    chosen = parse_only(only, model.names)
    examples = read_examples(
        model,
        sources,
        None,
        skip_broken=not strict,
        check=lambda names: refuse_others(model, names, chosen),  # before many are read
    )
    warn_unreadable(examples.dropped)
    if known := given_before(model, examples.features):
        n = sum(map(len, examples.features.values()))
        warn(
            f"warning: {known} of {counted(n, 'picture')} are examples that the model was given: of those it"
            " has not seen, fewer will be recognised"
        )
    found = measure(model, examples.features, expect=share, only=chosen)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "evaluation.json", found.as_json())
        write_text(output / "confusion.csv", found.csv())
        if found.trade_off is not None:
            write_text(output / "trade-off.csv", found.trade_off.csv())
    if json:
        print(json_text(found.as_json(), indent=2))
    elif csv:
        print(found.csv(), end="")
    else:
        Console().print(found.rich())
        if found.trade_off is not None:
            Console().print(found.trade_off.rich())
        for key, value in found.figures.items():
            say(f"{FIGURES[key]}: {value:.3f}" if key in PLAIN else f"{FIGURES[key]}: {value:.1%}")
