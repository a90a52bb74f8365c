"""``wdae runs``: run folders side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.cli.options import Csv, Json, check_sources, refuse_two_forms
from wdae.printing import say


def runs(
    *folders: Path,
    metric: str | None = None,
    test: bool = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Set trained runs side by side: what their recipes differ in, and what they reached.

    For a sweep, train in a loop and look at the folders together:

    for n in 0.02 0.08; do wdae train --bank DIR --training.noise $n -o runs/noise-$n; done

    wdae runs runs/noise-* -o sweep

    Parameters
    ----------
    folders
        Run folders of wdae train, wdae pretrain or wdae episodic.
    metric
        The figure of their metrics to show; the accuracy on validation classes by default. The best of a loss
        is its smallest, of anything else the largest.
    test
        Show test accuracies too, where there are some. Choose by validation classes, not by these.
    output
        Folder for runs.csv and the overlaid curves (curves.png, curves.svg).
    """
    refuse_two_forms(json, csv)
    given = check_sources(folders)
    from wdae.errors import MissingExtraError, RunError
    from wdae.evaluation.text_table import show
    from wdae.storage.files import write_text

    if not given:
        raise RunError("give run folders, as wdae train makes them: wdae runs runs/a runs/b")
    from wdae.comparison.overview import RunsTable

    table = RunsTable.of(given, metric, test=test)
    if json or csv:
        print(table.json() if json else table.csv(), end="\n" if json else "")
    else:
        show(table.text())
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / "runs.csv", table.csv())
        try:
            say(f"curves: {table.draw(output)[0]}")
        except MissingExtraError as error:
            say(f"no curves: {error}")
