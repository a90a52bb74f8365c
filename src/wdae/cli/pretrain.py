"""``wdae pretrain``: stage 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from wdae.cli.recipe import recipe_command
from wdae.printing import say
from wdae.stage1.config import Stage1Config

app = App(
    name="pretrain",
    help="Train a backbone and its cosine classifier on the base classes (stage 1).",
    help_format="plaintext",
)


@recipe_command(app, Stage1Config)
def pretrain(
    recipe: Stage1Config,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    max_seconds: float | None = None,
    model_dtype: Literal["float32", "float16"] = "float32",
) -> None:
    """Train a backbone and its cosine classifier on the base classes (stage 1).

    The run folder gets curves (metrics.jsonl), checkpoints and, at the end, the weights (model/). Under
    torchrun the same command uses one device a process. A run that was stopped goes on with the same command
    and --resume.

    Parameters
    ----------
    output:
        The run folder to make, or to go on with.
    device:
        cpu, cuda or cuda:N; a GPU where there is one.
    resume:
        Go on from the run's last checkpoint.
    force:
        Replace a run that is in the folder.
    max_seconds:
        Stop after this time with a checkpoint to resume from.
    model_dtype:
        How the weights are written.
    """
    from wdae.stage1.run import run_pretraining

    outcome = run_pretraining(
        recipe,
        output,
        device=device,
        resume=resume,
        force=force,
        max_seconds=max_seconds,
        model_dtype=model_dtype,
    )
    if outcome is None:
        return
    rate = f"{outcome.images_per_s:,.0f} images/s, {outcome.tflops:.1f} TFLOP/s"
    figures = ", ".join(f"{name} {value:.2f}" for name, value in outcome.figures.items())
    if outcome.finished:
        say(f"{outcome.model}: {outcome.total_steps} steps, {rate}; {figures}")
    else:
        say(f"stopped at step {outcome.step} of {outcome.total_steps} ({rate}); go on with --resume")
