"""``wdae reproduce``: the paper's tables, row by row, beside its figures."""

from __future__ import annotations

from typing import Literal

from wdae.cli.options import Force, Json, Output, Resume
from wdae.cli.recipe import recipe_command
from wdae.printing import say
from wdae.reproduce.config import ReproduceRecipe


@recipe_command(ReproduceRecipe)
def reproduce(
    recipe: ReproduceRecipe,
    benchmark: Literal["mini-imagenet", "tiered-imagenet", "imagenet-fs"],
    /,
    *,
    output: Output,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Run the rows of the paper's tables and set them beside its figures.

    From pictures (--data), stage 1 is trained for each table first; from feature banks (--bank,
    --held-out-bank, --trainval-bank) the rows alone are. Rows whose features are not given are left out, and
    the table says so. The run folder gets results.json, results.md, plots, and every row with its method.
    With --resume, finished rows are not run again, options given anew win, and pictures, banks and backbones
    are named again.

    Parameters
    ----------
    benchmark
        mini-imagenet (tables 2 and 3), tiered-imagenet (table 4) or imagenet-fs (table 1).
    """
    from wdae.evaluation.text_table import show
    from wdae.reproduce.benchmarks import BENCHMARKS
    from wdae.reproduce.render import heading_of, not_run, text_tables
    from wdae.reproduce.run import PAGE, open_run
    from wdae.reproduce.run import reproduce as run_all

    chosen = BENCHMARKS[benchmark]
    if recipe.seeds:
        from wdae.reproduce.seeds import JSON, PAGE, run_seeds

        table = run_seeds(chosen, recipe, output, resume=resume, force=force)
        if json:
            print((output / JSON).read_text(encoding="utf-8"), end="")
            return
        show(table)
        say(f"{output / PAGE}")
        return
    run, recipe = open_run(chosen, recipe, output, resume=resume, force=force)
    record = run_all(run, chosen, recipe)
    if json:
        print((run.path / "results.json").read_text(encoding="utf-8"), end="")
        return
    for table in record["tables"]:
        say(heading_of(table))
        show(*text_tables(table))
    for line in not_run(record):
        say(line)
    if "plots_missing" in record:
        say(f"no plots: {record['plots_missing']}")
    say(f"{run.path / PAGE}: {record['seconds'] / 60:.1f} minutes")
