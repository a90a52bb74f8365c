"""``wdae compare``: every method on one bank, on the same episodes."""

from __future__ import annotations

from pathlib import Path

from wdae.cli.options import Csv, Force, Json, Output, Resume, check_bank, refuse_two_forms
from wdae.cli.recipe import recipe_command
from wdae.comparison.config import CompareRecipe
from wdae.errors import RecipeError
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
    --resume, methods that are finished are not run again; --bank is named again. With --seeds 0 1 2, all is
    done once for each seed of training, in folders seed-N, on the same test episodes; seeds.md has the mean
    over them and how far they spread.

    Parameters
    ----------
    document
        A Markdown document to put the table into as well, such as notes.md.
    """
    refuse_two_forms(json, csv)
    if not resume:
        check_bank(recipe.bank)
    if document is not None and recipe.seeds:
        raise RecipeError("--document takes the table of one seed; leave --seeds out, and see seeds.md")
    from wdae import api
    from wdae.comparison.table import ComparisonTable
    from wdae.evaluation.text_table import show

    view = api.compare(recipe, output, resume=resume, force=force)
    if document is not None and isinstance(view, ComparisonTable):
        view.into(document)
    if json or csv:
        print(view.json() if json else view.csv(), end="\n" if json else "")
        return
    show(view.text())
    one = isinstance(view, ComparisonTable)
    say(f"report: {output / 'report.html'}" if one else f"table: {output / 'seeds.md'}")
