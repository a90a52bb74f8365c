"""``wdae episodic``: a backbone and a method trained together, from pictures."""

from __future__ import annotations

from wdae.cli.options import Device, Force, Output, Resume, check_sources
from wdae.cli.recipe import recipe_command
from wdae.episodic.config import EpisodicRecipe
from wdae.printing import say


@recipe_command(EpisodicRecipe)
def episodic(
    recipe: EpisodicRecipe,
    *,
    output: Output,
    device: Device = "auto",
    resume: Resume = False,
    force: Force = False,
    max_seconds: float | None = None,
    test_stopped: bool = False,
) -> None:
    """Train a backbone and a few-shot method together, on episodes of pictures.

    After the Conv-4 rows of the paper's table 2 (prototypical and relation networks, GNN, R2-D2, MAML) and
    matching networks, which it has no row of; recipes and docs/notation.md say what differs from their
    authors' trainings. Validation classes choose the weights, novel classes test them once, at the end. The
    run folder gets curves (metrics.jsonl), a checkpoint, the kept weights (model.safetensors) and the result.
    A run that was stopped goes on with the same command and --resume; one that is finished is tested again.

    Parameters
    ----------
    max_seconds
        Stop after this many seconds with a checkpoint to resume from.
    test_stopped
        Where max_seconds ended the training, test the best weights so far all the same. The result says at
        which step it stopped (stopped_at). With --resume the training goes on, and a new result replaces it.
    """
    if not resume:
        check_sources([recipe.data.path])
    from wdae.episodic.run import run_episodic

    result = run_episodic(
        recipe,
        output,
        device=device,
        resume=resume,
        force=force,
        max_seconds=max_seconds,
        test_stopped=test_stopped,
    )
    if result is None:
        say(f"{output}: stopped before the last step; go on with --resume")
        return
    info, novel = result.info, result.metrics["novel"]
    say(
        f"{result.label}, {result.n_way}-way {result.n_shot}-shot: {novel.percent()} on {novel.n:,} episodes"
        f" of novel classes; kept step {info['kept_step']}, validation {100 * info['validation']:.2f}"
        + (f"; stopped at step {info['stopped_at']} of {recipe.steps}" if "stopped_at" in info else "")
    )
