"""``wdae predict``, ``wdae info`` and ``wdae explain``: commands that ask a model something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

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
    refuse_two_forms,
)
from wdae.errors import DataError, ModelError
from wdae.printing import counted, json_text, say


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
    shard: str | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
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
    shard
        Classify one part of the pictures alone, 2/8 is the second of eight; the outputs of all parts, one
        after the other, are those of the whole.
    engine
        ray shares the pictures out among the machines of a Ray cluster (pip install 'wdae[ray]').
    ray_address
        The cluster's address; without, one is started on this machine.
    """
    check_model(model)
    refuse_two_forms(json, csv)
    if top < 1:
        raise ModelError(f"at least 1 class is shown, got --top {top}")
    if not 0 <= false_alarms <= 1:
        raise ModelError(f"--false-alarms lies between 0 and 1, got {false_alarms}")
    share, sources = parse_share(expect), tuple(check_sources(sources))
    from wdae.classifier.light.answers import csv_heading
    from wdae.classifier.light.cluster import PredictOptions, lines_by_ray
    from wdae.classifier.light.folder import ModelFolder
    from wdae.classifier.light.sources import find_pictures, is_feature_file
    from wdae.data.findings import warn_unreadable
    from wdae.storage.files import atomic_file
    from wdae.storage.shard import Shard
    from wdae.storage.unfinished import working

    part = None if shard is None else Shard.parse(shard)
    if part is not None or engine == "ray":
        if part is not None and engine == "ray":
            raise ModelError("--shard is for machines without an engine; give --shard or --engine ray")
        if any(is_feature_file(source) for source in sources):
            raise ModelError("pictures are shared out, not files of features; leave --shard and --engine out")
        pictures = find_pictures(sources)
        sources = tuple(Path(name) for name in (pictures if part is None else part.of(pictures)))
    chosen = parse_only(only, ModelFolder.open(model, verify=False).names) if only else None
    form: Literal["line", "json", "csv"] = "json" if json else "csv" if csv else "line"
    among = tuple(chosen) if isinstance(chosen, list) else chosen
    question = PredictOptions(str(model), top, share, among, false_alarms, form, device, coverage)
    unreadable: list[str] = []
    headed = csv and (part is None or part.number == 1)

    def lines(work: Path | None = None) -> Iterator[str]:
        folder, answers = question.ready()
        if headed:
            yield csv_heading(min(top, len(answers.names)), coverage is not None)
        if work is not None:
            yield from lines_by_ray(question, list(map(str, sources)), unreadable, work, ray_address)
        elif sources or part is None:
            yield from question.lines(folder, answers, sources, unreadable)

    count = 0
    if output is None:
        if engine == "ray":
            raise ModelError("--engine ray writes a file, so that it can go on where it was; give -o FILE")
        for count, line in enumerate(lines(), start=1 - headed):  # noqa: B007
            print(line)
    else:
        with (
            working(output) if engine == "ray" else nullcontext() as work,
            atomic_file(output) as temporary,
            temporary.open("w", encoding="utf-8") as file,
        ):
            count = sum(bool(file.write(line + "\n")) for line in lines(work)) - headed
        say(f"{output}: {counted(count, 'line')}")
    warn_unreadable(unreadable)
    if unreadable and (strict or not skip_broken or not count):
        raise DataError(
            f"{counted(len(unreadable), 'picture')} cannot be read; {count} others were classified"
        )


def info(model: Model, /, *, json: Json = False) -> None:
    """Show a model's classes, shots, history, sizes and figures, and check its files.

    Of an exported ONNX file: what it says of itself.
    """
    if model.suffix == ".onnx" and model.is_file():
        from wdae.export.about import facts_of, print_facts

        facts = facts_of(model)
        print(json_text(facts, indent=2)) if json else print_facts(facts)
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
