"""``wdae train``: stage 2, from a feature bank to a trained denoiser with its figures."""

from __future__ import annotations

from pathlib import Path

from wdae.cli.options import Force, Output, Resume, check_bank
from wdae.cli.recipe import recipe_command
from wdae.stage2.config import MetaRecipe


@recipe_command(MetaRecipe)
def train(
    recipe: MetaRecipe,
    *,
    bank: Path,
    output: Output,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train a denoiser of class weights on a feature bank (stage 2).

    The run folder gets the resolved recipe, metrics, the model, test results beside the initial
    estimate, plots and report.html. Under torchrun, processes share out the groups of each step
    (--training.groups).

    Parameters
    ----------
    bank
        The feature bank (see wdae extract, wdae bank), or embedded: the one that ships with the package.
    """
    check_bank(bank)
    from wdae.api import as_bank
    from wdae.evaluation.text_table import show
    from wdae.runs.run import Run
    from wdae.runtime.distributed import join
    from wdae.stage2.run import CHECKPOINT, fit_method, run_training

    features = as_bank(bank)
    with join(recipe.device) as team:
        if not team.is_main:  # it works on the main process's run, and leaves the rest to it
            checkpoint = output / CHECKPOINT
            recipe = MetaRecipe.model_validate_json(team.text_from_main())
            fit_method(
                recipe, features, team=team, checkpoint=checkpoint, resume=resume and checkpoint.exists()
            )
            return
        if resume:
            run = Run.resume(output)
            recipe = run.recipe(MetaRecipe)
        else:
            run = Run.create(output, recipe, seed=recipe.seed, force=force)
        team.text_from_main(recipe.model_dump_json())
        table = run_training(run, recipe, features, resume=resume, team=team)
    show(table.accuracies(caption=f"report: {run.report}"))
