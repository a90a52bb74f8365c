"""``wdae backbones``: what can turn pictures into features here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from wdae.cli.options import Json

app = cyclopts.App(name="backbones", help="What can turn pictures into features; fetch another one.")


@app.default
def backbones(*, speed: bool = False, json: Json = False) -> None:
    """List the backbones there are: size, features, licence, and what each has seen.

    What a backbone has seen it knows: never compare methods on classes or pictures that it was trained on.

    Parameters
    ----------
    speed
        Measure pictures a second on this machine.
    """
    from rich.console import Console
    from rich.table import Table

    from wdae.backbones.catalogue import OTHERS, SHIPPED, downloads
    from wdae.errors import WdaeError
    from wdae.printing import cell, json_text

    rows: list[dict[str, Any]] = []
    for facts in SHIPPED:
        row: dict[str, Any] = facts.model_dump()
        if speed:
            try:
                row["pictures_per_second"] = round(_speed(facts.name), 1)
            except WdaeError as error:
                row["missing"] = str(error)
        rows.append(row)
    to_fetch = [entry.facts() for entry in downloads().values()]
    if json:
        print(json_text({"backbones": rows, "to_fetch": to_fetch, "others": OTHERS}, indent=2))
        return
    view = Table(box=None, pad_edge=False)
    titles = [
        "backbone",
        "MB",
        "features",
        "px",
        *(["pictures/s"] if speed else []),
        "licence",
        "has seen",
        "",
    ]
    for title in titles:
        view.add_column(title, no_wrap=title == "backbone")
    for row in [*rows, *to_fetch]:
        absent = "to be fetched" if row in to_fetch else "not installed"
        rate = [str(row.get("pictures_per_second", absent))] if speed else []
        numbers = [str(row[key]) for key in ("megabytes", "features", "image_size")]
        view.add_row(*map(cell, [row["name"], *numbers, *rate, row["licence"], row["seen"], row["about"]]))
    console = Console()
    wide = Console(width=console.width if console.is_terminal else 150)
    wide.print(view)
    names = " or ".join(row["name"] for row in to_fetch)
    wide.print(f"\n{names}: wdae backbones fetch NAME -o FOLDER downloads it", markup=False, highlight=False)
    wide.print()
    for name, about in OTHERS.items():
        wide.print(f"{name:<20}{about}", markup=False, highlight=False)


def _speed(name: str) -> float:
    """Pictures a second through the network, in batches of eight."""
    import time

    import torch

    from wdae.classifier.picture_backbone import load_backbone

    backbone = load_backbone(name)
    images = torch.zeros(8, 3, backbone.image_size, backbone.image_size)
    done, seconds = -8, 0.0
    with torch.no_grad():
        while seconds < 2.0:
            began = time.perf_counter()
            backbone.network(images)
            seconds += (time.perf_counter() - began) if done >= 0 else 0.0  # the first warms up
            done += 8
    return done / seconds


@app.command
def fetch(
    source: str,
    name: str | None = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
) -> None:
    """Fetch a backbone of others: wdae backbones fetch dinov2-small -o dino.

    wdae backbones lists those that it knows. Others come from a file of entries of yours: wdae backbones
    fetch entries.json mine -o mine. An entry has the address of an ONNX file, its size and SHA-256, its
    licence, what it has seen, and how it wants its pictures; docs/guides/backbones.md shows one. Nothing is
    downloaded but by this command.

    Parameters
    ----------
    source
        A name, or the JSON file of entries.
    name
        Which of a file's entries, where it has several.
    output
        The folder to make.
    """
    from wdae.backbones.catalogue import ENTRIES, find_download
    from wdae.backbones.catalogue import fetch as fetched
    from wdae.printing import say

    is_name = name is None and not source.endswith(".json") and not Path(source).is_file()
    entry = find_download(ENTRIES, source) if is_name else find_download(source, name)
    file = fetched(entry, output)
    say(f"{file}: {entry.about}; licence {entry.licence}; has seen {entry.seen}")
    say(f"use it with: --backbone onnx:{file}")
