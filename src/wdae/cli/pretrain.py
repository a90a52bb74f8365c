"""``wdae pretrain``: stage 1."""

from __future__ import annotations

from typing import Literal

from wdae.cli.options import Device, Force, Output, Resume, check_sources
from wdae.cli.recipe import recipe_command
from wdae.printing import say
from wdae.stage1.config import Stage1Config


@recipe_command(Stage1Config)
def pretrain(
    recipe: Stage1Config,
    *,
    output: Output,
    device: Device = "auto",
    resume: Resume = False,
    force: Force = False,
    max_seconds: float | None = None,
    dtype: Literal["float32", "float16"] = "float32",
) -> None:
    """Train a backbone and its cosine classifier on the base classes (stage 1).

    The run folder gets curves (metrics.jsonl), checkpoints and, at the end, the trained backbone (model/) for
    wdae extract. Under torchrun the same command uses one device a process. A run that was stopped goes on
    with the same command and --resume.

    Parameters
    ----------
    max_seconds
        Stop after this many seconds with a checkpoint to resume from.
    dtype
        How the weights are written.
    """
    if not resume:
        check_sources([recipe.data.path])
    from wdae.stage1.run import run_pretraining

    outcome = run_pretraining(
        recipe,
        output,
        device=device,
        resume=resume,
        force=force,
        max_seconds=max_seconds,
        model_dtype=dtype,
    )
    if outcome is None:
        return
    rate = f"{outcome.images_per_s:,.0f} images/s, {outcome.tflops:.1f} TFLOP/s"
    figures = ", ".join(f"{name} {value:.2f}" for name, value in outcome.figures.items())
    if outcome.finished:
        say(f"{outcome.model}: {outcome.total_steps} steps, {rate}; {figures}")
    else:
        say(f"stopped at step {outcome.step} of {outcome.total_steps} ({rate}); go on with --resume")
