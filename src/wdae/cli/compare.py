"""``wdae compare``: every method on one bank, on the same episodes."""

from __future__ import annotations

from pathlib import Path

from wdae.cli.options import Csv, Force, Json, Output, Resume, check_bank
from wdae.cli.recipe import recipe_command
from wdae.comparison.config import CompareRecipe
from wdae.printing import say


@recipe_command(CompareRecipe)
def compare(
    recipe: CompareRecipe,
    *,
    output: Output,
    document: Path | None = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Train and measure many methods on one bank, on the same episodes.

    The run folder gets each trained method, its results, comparison.csv, .json and .md, and report.html. With
    --resume, methods that are finished are not run again; --bank is named again.

    Parameters
    ----------
    document
        A Markdown document to put the table into as well, such as docs/results.md.
    """
    if not resume:
        check_bank(recipe.bank)
    from wdae import api
    from wdae.evaluation.text_table import show

    view = api.compare(recipe, output, resume=resume, force=force)
    if document is not None:
        view.into(document)
    if json or csv:
        print(view.json() if json else view.csv(), end="\n" if json else "")
        return
    show(view.text())
    say(f"report: {output / 'report.html'}")
