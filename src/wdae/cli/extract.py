"""``wdae extract``: pictures to a feature bank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wdae.cli.recipe import recipe_command
from wdae.extract.config import ExtractConfig
from wdae.printing import say

app = App(
    name="extract", help="Turn pictures into a feature bank with a trained backbone.", help_format="plaintext"
)


@recipe_command(app, ExtractConfig)
def extract(
    recipe: ExtractConfig,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    device: str | None = None,
) -> None:
    """Turn pictures into a feature bank with a trained backbone.

    Interrupted, the same command goes on where it was. Under torchrun the work is shared out.

    Parameters
    ----------
    output:
        The bank to make.
    device:
        cpu, cuda or cuda:N; a GPU where there is one.
    """
    from wdae.extract.run import run_extraction

    done = run_extraction(recipe, output, device=device)
    if done is not None:
        rate = f"{done.images_per_s:,.0f} images/s, {done.tflops:.1f} TFLOP/s"
        say(f"{done.path}: {done.images} images ({rate} while embedding)")
