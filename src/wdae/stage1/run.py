"""Pretraining (stage 1) as a whole, from recipe to run folder."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from wdae.errors import RunError
from wdae.runs.run import Run
from wdae.runtime.device import fast_arithmetic
from wdae.runtime.distributed import join
from wdae.stage1.config import Stage1Config
from wdae.stage1.data import load_data
from wdae.stage1.train import LAST, Pretraining, train_stage1


def run_pretraining(
    config: Stage1Config,
    output: Path,
    *,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    max_seconds: float | None = None,
    model_dtype: Literal["float32", "float16"] = "float32",
) -> Pretraining | None:
    """Train stage 1 in a run folder; the outcome on the main process, None on others.

    ``max_seconds`` counts from here, reading and decoding pictures included.
    """
    began = time.monotonic()
    with join(device) as team, fast_arithmetic(team.device):
        if resume and not (output / LAST).is_file():
            raise RunError(f"{output} has no checkpoint ({LAST}) to go on from; start it without --resume")
        run = Run(output)
        if team.is_main:
            run = Run.resume(output) if resume else Run.create(output, config, force=force)
        with run.alone() if team.is_main else nullcontext():
            team.barrier()
            # The first process decodes into the cache; the others read it from there.
            data = load_data(config, team.device) if team.is_main else None
            team.barrier()
            if data is None:
                data = load_data(config, team.device)
            left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
            outcome = train_stage1(
                config, data, run, team, resume=resume, max_seconds=left, model_dtype=model_dtype
            )
        return outcome if team.is_main else None
