"""``wdae compare``: every method on one bank, on the same episodes."""

from __future__ import annotations

from pathlib import Path

from wdae.cli.options import Csv, Force, Json, Output, Resume
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
    --resume, methods that are finished are not run again.

    Parameters
    ----------
    document
        A Markdown document to put the table into as well, such as docs/results.md.
    """
    from wdae.bank import FeatureBank
    from wdae.bank.embedded import embedded_bank
    from wdae.comparison.run import chosen_methods, run_comparison
    from wdae.comparison.table import ComparisonTable
    from wdae.config import load
    from wdae.evaluation.html import write_report
    from wdae.evaluation.paper import paper_figures
    from wdae.evaluation.text_table import show
    from wdae.runs.run import RECIPE, Run

    if resume:
        recipe = load(CompareRecipe, Run.open(output).path / RECIPE)
    words = tuple(word for part in recipe.methods for word in part.split(",") if word)
    recipe = recipe.model_copy(update={"methods": words})
    chosen_methods(recipe)  # refused before anything is loaded or written
    bank = embedded_bank() if recipe.bank == "embedded" else FeatureBank.open(Path(recipe.bank))
    run = Run.resume(output) if resume else Run.create(output, recipe, seed=recipe.seed, force=force)
    table = run_comparison(run, recipe, bank)
    view = ComparisonTable(table, recipe.reference, paper_figures(bank), bank.info.get("backbone"))
    view.save(run.path)
    if document is not None:
        view.into(document)
    write_report(run, baseline=recipe.reference)
    if json or csv:
        print(view.json() if json else view.csv(), end="\n" if json else "")
        return
    show(view.text())
    say(f"report: {run.report}")
