"""``wdae extract``: pictures to a feature bank."""

from __future__ import annotations

from wdae.cli.options import Device, NewBank, check_sources
from wdae.cli.recipe import recipe_command
from wdae.extract.config import ExtractConfig
from wdae.printing import say


@recipe_command(ExtractConfig)
def extract(recipe: ExtractConfig, *, output: NewBank, device: Device = "auto") -> None:
    """Turn pictures into a feature bank with a trained backbone.

    Interrupted, the same command goes on where it was. Under torchrun the work is shared out.
    """
    check_sources([recipe.data])
    from wdae.extract.run import run_extraction

    done = run_extraction(recipe, output, device=device)
    if done is not None:
        rate = f"{done.images_per_s:,.0f} images/s, {done.tflops:.1f} TFLOP/s"
        say(f"{done.path}: {done.images} images ({rate} while embedding)")
