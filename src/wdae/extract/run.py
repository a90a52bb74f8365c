"""Extraction: every picture of a data set becomes a row of a feature bank.

Features are computed in chunks, each saved when done, so an interrupted extraction resumes where it was. Who
computes the chunks is a matter of choice: this process, several under ``torchrun`` with a shared folder, one
for each shard (:mod:`wdae.extract.shards`), or the workers of a Ray cluster (:mod:`wdae.extract.ray_engine`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from wdae.extract.config import ExtractConfig
from wdae.extract.job import ExtractJob
from wdae.extract.shards import save_shard
from wdae.extract.views import Rows
from wdae.runs.progress import progress
from wdae.runtime.distributed import Team, join
from wdae.storage.files import refuse_existing
from wdae.storage.records import read_json, write_json
from wdae.storage.shard import Shard
from wdae.storage.tensors import load_parts, load_tensors, save_tensors
from wdae.storage.trust import Trust
from wdae.storage.unfinished import empty, unfinished, working

Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class Extraction:
    """What an extraction did: the bank's folder, how many pictures, at which rate."""

    path: Path
    images: int
    images_per_s: float
    tflops: float


def extract(
    config: ExtractConfig,
    out: str | Path,
    team: Team,
    *,
    trust: Trust = (),
    shard: Shard | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
) -> Extraction:
    """Write the feature bank of a data set to the new folder ``out``.

    The bank holds every part; with a model of ours, the base weights and the scale too.

    Args:
        trust: a backbone of others that the model may name.
        shard: compute these chunks alone; ``out`` is then a shard, and ``wdae bank merge`` makes the bank.
        engine: who computes: the processes of ``team``, or a Ray cluster.
        ray_address: of a cluster that is there; without, one is started on this machine.
    """
    out = Path(out)
    refuse_existing(out)
    if shard is not None or engine == "ray":
        config = config.model_copy(update={"stream": True})  # nobody decodes what others embed
    job = ExtractJob(config, team.device, trust)
    config = job.config
    starts = list(job.starts) if shard is None else shard.of(job.starts)
    with working(out) if team.is_main else nullcontext(unfinished(out)) as work:
        _begin(work, {**job.plan(), "pictures": job.images.source.stamp(), "stream": config.stream}, team)
        mine = starts[team.rank :: team.size] if engine == "local" else starts
        todo = [start for start in mine if not _chunk(work, start).is_file()]
        total = sum(min(config.chunk, job.count - start) for start in todo) if team.is_main else 0
        with progress(total, "extracting", "images") as bar:

            def done(start: int, features: torch.Tensor, rows: Rows) -> None:
                save_tensors(
                    _chunk(work, start), {"features": features.cpu(), "rows": torch.from_numpy(rows)}
                )
                bar.update(len(rows))

            if engine == "ray":
                from wdae.extract.ray_engine import run_chunks

                rate = run_chunks(config, job.images, todo, done, ray_address, trust)
            else:
                rate = _run_chunks(job, todo, done)
        team.barrier()
        if team.is_main:
            chunks = [_chunk(work, start) for start in starts]
            dim = None
            numbers = [torch.empty(0, dtype=torch.int64)]  # of more shards than chunks, some are empty
            for chunk in chunks:  # one open at a time
                (part,) = load_parts([chunk], len(job.images), dim)
                numbers.append(part["rows"].clone())
                dim = part["features"].shape[1]
            rows = torch.cat(numbers).numpy()

            def features() -> Iterator[torch.Tensor]:
                return (load_tensors(chunk)["features"] for chunk in chunks)

            if shard is None:
                job.save_bank(out, features, dim or 0, rows)
            else:
                save_shard(job, shard, features, dim or 0, rows, out)
    team.barrier()
    images = sum(min(config.chunk, job.count - start) for start in starts)
    return Extraction(out, images, rate, rate * job.flops() / 1e12)


def run_extraction(
    config: ExtractConfig,
    output: Path,
    *,
    device: str | None = None,
    trust: Trust = (),
    shard: Shard | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
) -> Extraction | None:
    """Extraction to a new bank; what was done on the main process, None on others."""
    with join(device) as team:
        done = extract(config, output, team, trust=trust, shard=shard, engine=engine, ray_address=ray_address)
        return done if team.is_main else None


def _run_chunks(job: ExtractJob, todo: list[int], done: Any) -> float:
    """Embed chunks in this process; returns the rate of the embedding alone."""
    seconds, count = 0.0, 0
    for start in todo:
        features, rows, took = job.chunk(start)
        if start != todo[0] or len(todo) == 1:  # The first chunk warms up.
            seconds, count = seconds + took, count + len(rows)
        done(start, features, rows)
    return count / seconds if seconds else 0.0


def _begin(work: Path, plan: dict[str, Any], team: Team) -> None:
    """Chunks of another plan are deleted."""
    if team.is_main:
        file = work / "plan.json"
        if not (file.is_file() and read_json(file) == json.loads(json.dumps(plan))):
            empty(work)
        write_json(file, plan)
    team.barrier()


def _chunk(work: Path, start: int) -> Path:
    return work / f"{start:09d}.safetensors"
