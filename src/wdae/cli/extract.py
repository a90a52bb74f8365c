"""``wdae extract``: pictures to a feature bank."""

from __future__ import annotations

from typing import Literal

from wdae.cli.options import Device, NewBank, check_sources
from wdae.cli.recipe import recipe_command
from wdae.errors import RecipeError
from wdae.extract.config import ExtractConfig
from wdae.printing import say


@recipe_command(ExtractConfig)
def extract(
    recipe: ExtractConfig,
    *,
    output: NewBank,
    device: Device = "auto",
    shard: str | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
) -> None:
    """Turn pictures into a feature bank with a trained backbone.

    Interrupted, the same command goes on where it was. Under torchrun the work is shared out.

    Parameters
    ----------
    shard
        Compute one part alone, 2/8 is the second of eight; wdae bank merge makes a bank of all parts.
    engine
        ray shares the work out among the machines of a Ray cluster (pip install 'wdae[ray]').
    ray_address
        The cluster's address; without, one is started on this machine.
    """
    if not str(recipe.data).startswith("s3:/"):  # as wdae.data.remote.is_remote has it
        check_sources([recipe.data])
    from wdae.extract.run import run_extraction
    from wdae.storage.shard import Shard

    part = None if shard is None else Shard.parse(shard)
    if part is not None and engine == "ray":
        raise RecipeError("--shard is for machines without an engine; give --shard or --engine ray, not both")
    done = run_extraction(recipe, output, device=device, shard=part, engine=engine, ray_address=ray_address)
    if done is not None:
        rate = f"{done.images_per_s:,.0f} images/s, {done.tflops:.1f} TFLOP/s"
        say(f"{done.path}: {done.images} images ({rate} while embedding)")
