"""``wdae predict``, ``wdae info`` and ``wdae explain``: commands that ask a model something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from wdae.cli.options import (
    Csv,
    Device,
    Expect,
    Json,
    Model,
    Only,
    SkipBroken,
    Strict,
    check_model,
    check_sources,
    parse_only,
    parse_share,
)
from wdae.errors import DataError, ModelError
from wdae.printing import json_text, say

if TYPE_CHECKING:
    from wdae.classifier.light.answers import Answers
    from wdae.classifier.light.folder import ModelFolder
    from wdae.classifier.predictions import TorchAnswers


def predict(
    model: Model,
    /,
    *sources: Path,
    top: int = 1,
    expect: Expect = None,
    only: Only = None,
    false_alarms: float = 0.05,
    coverage: float | None = None,
    json: Json = False,
    csv: Csv = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    strict: Strict = False,
    skip_broken: SkipBroken = True,
    device: Device = "auto",
) -> None:
    """Classify pictures: wdae predict model a.jpg photos/ --top 5.

    One line a picture, columns apart by tabs: the picture; "known", or "unknown" where it resembles no class;
    then classes, each with its probability in a column of its own. With --json, one object a line. Any number
    of pictures streams through.

    Parameters
    ----------
    sources
        Pictures, folders of pictures, patterns such as "new/*.jpg", or files of features.
    top
        Classes to show.
    false_alarms
        Share of pictures of known classes that may be called unknown wrongly; 0 turns it off.
    coverage
        Show also the set of classes that the true one is among, for this share of pictures of known classes,
        base or added: from 0.5 to 0.99. Two columns more: how many they are, and their names.
    output
        Write to this file, which appears when it is whole.
    """
    check_model(model)
    if top < 1:
        raise ModelError(f"at least 1 class is shown, got --top {top}")
    if not 0 <= false_alarms <= 1:
        raise ModelError(f"--false-alarms lies between 0 and 1, got {false_alarms}")
    share, sources = parse_share(expect), tuple(check_sources(sources))
    from wdae.classifier.light.answers import csv_heading
    from wdae.classifier.light.folder import ModelFolder
    from wdae.classifier.light.sources import stream_items
    from wdae.data.findings import tell_left_out
    from wdae.storage.files import atomic_file

    opened, unreadable = ModelFolder.open(model), list[str]()
    chosen = parse_only(only, opened.names)
    among = None if chosen is None else opened.chosen(chosen)
    answers = _answers(opened, coverage).asked(expect=share, only=among)

    def lines() -> Iterator[str]:
        if csv:
            yield csv_heading(min(top, len(answers.names)), coverage is not None)
        for names, features in stream_items(opened, sources, unreadable, device):
            found = answers.predictions(features, top, false_alarms)
            for name, one in zip(names, found, strict=True):
                yield one.as_json(name) if json else one.as_csv(name) if csv else one.as_line(name)

    count = 0
    if output is None:
        for count, line in enumerate(lines(), start=1 - csv):  # noqa: B007
            print(line)
    else:
        with atomic_file(output) as temporary, temporary.open("w", encoding="utf-8") as file:
            count = sum(bool(file.write(line + "\n")) for line in lines()) - csv
        say(f"{output}: {count} lines")
    tell_left_out(unreadable)
    if unreadable and (strict or not skip_broken or not count):
        raise DataError(f"{len(unreadable)} pictures cannot be read; {count} others were classified")


def _answers(folder: ModelFolder, coverage: float | None) -> Answers | TorchAnswers:
    if coverage is not None:
        from wdae.classifier.predictions import TorchAnswers
        from wdae.classifier.store import load

        return TorchAnswers(load(folder.path), coverage=coverage)
    if folder.has_answers:
        return folder.answers()
    from wdae.classifier.store import computed_answers

    return computed_answers(folder)


def info(model: Model, /, *, json: Json = False) -> None:
    """Show a model's classes, shots, history, sizes and figures, and check its files.

    Of an exported ONNX file: what it says of itself.
    """
    if model.suffix == ".onnx" and model.is_file():
        from wdae.export.about import facts_of, print_facts

        told = facts_of(model)
        print(json_text(told, indent=2)) if json else print_facts(told)
        return
    check_model(model)
    from wdae.classifier.summary import print_summary, summary

    facts = summary(model)
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
    check_model(model)
    from wdae.classifier.explain import explain as explained
    from wdae.classifier.store import load

    opened = load(model)
    found = explained(opened, class_name)
    print(json_text(found.as_json(), indent=2) if json else found.as_text())
    if picture is not None:
        from wdae.classifier.explain import explanation_plot

        for path in explanation_plot(opened, found, picture.parent, picture.stem):
            say(path)
