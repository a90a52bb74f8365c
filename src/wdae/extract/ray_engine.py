"""Extraction by Ray Data: a pool of actors reads, decodes and embeds; the driver writes what comes back.

Ray hands a chunk's number to an actor, which gives its features back, so memory stays flat and no actor gets
ahead of the driver by more than Ray allows. The list of pictures travels once to each machine, into memory
that its actors share. An actor that is lost is replaced and its chunk computed again. A driver that is lost
is started again by the same command: chunks that it had written are not computed anew.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wdae.config.shipped import EMBEDDED
from wdae.data import FileSource, ImageSet
from wdae.data.remote import PlacedSource, is_remote
from wdae.errors import MissingExtraError, RunError
from wdae.extract.config import ExtractConfig
from wdae.extract.job import ExtractJob
from wdae.extract.views import Rows
from wdae.runtime.process import keep_freed_memory
from wdae.storage.trust import Trust
from wdae.version import __version__

Done = Callable[[int, Tensor, Rows], None]
_PATIENCE = 20.0  # seconds for a machine to answer at all


def run_chunks(
    config: ExtractConfig,
    images: ImageSet,
    todo: Sequence[int],
    done: Done,
    address: str | None = None,
    trust: Trust = (),
) -> float:
    """Compute the chunks that begin at ``todo`` on a cluster; returns pictures a second of all workers.

    Args:
        images: the data set of the recipe.
        done: called with each chunk as it comes, in any order.
        address: of the cluster; None starts one on this machine, which ends with this process.
    """
    began, count = time.monotonic(), 0
    items = [{"start": start} for start in todo]
    shared = (
        [connect(address).put(_sent(images))] if todo else []
    )  # a reference, which travels with the actors
    for row in pool(Embedder, (_placed(config), versions(), trust, shared), items, address):
        start, shape = int(row["start"][0]), tuple(int(n) for n in row["shape"][0])
        features = torch.from_numpy(np.frombuffer(row["features"][0], np.float32).reshape(shape).copy())
        done(start, features, np.frombuffer(row["rows"][0], np.int64).copy())
        count += shape[0]
    return count / max(1e-9, time.monotonic() - began)


def pool(
    actor: type[Any], arguments: tuple[Any, ...], items: Sequence[dict[str, Any]], address: str | None = None
) -> Iterator[dict[str, Any]]:
    """What actors make of items, each a batch of one, as it comes; as many actors as GPUs, else as cores.

    Args:
        actor: a class that is made with ``arguments`` on a worker, and called with batches.
    """
    if not items:
        return
    ray = connect(address)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    most = max(1, min(gpus or int(ray.cluster_resources().get("CPU", 1)), len(items)))
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    found = ray.data.from_items(list(items), override_num_blocks=len(items)).map_batches(
        actor,
        batch_size=1,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(
            min_size=1, max_size=most, initial_size=most, max_tasks_in_flight_per_actor=2
        ),
        num_cpus=1,
        num_gpus=1 if gpus else 0,
    )
    try:
        yield from found.iter_batches(batch_size=1, prefetch_batches=1, batch_format="numpy")
    except ray.exceptions.RayError as error:
        raise RunError(f"the cluster gave up: {_reason(error)}") from error


class Embedder:
    """An actor: the backbone, opened once, then chunk after chunk; a list of pictures is the driver's."""

    def __init__(
        self, config: ExtractConfig, driver: dict[str, str], trust: Trust, shared: list[Any]
    ) -> None:
        import ray

        refuse_other_versions(driver)
        (images,) = ray.get(shared)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cpu":
            torch.set_num_threads(1)  # of its one core
            keep_freed_memory(all_of_it=True)
        self.job = ExtractJob(config, device, trust, 0 if device.type == "cpu" else None, images)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The features of one chunk, as bytes: Ray copies them as they are."""
        start = int(batch["start"][0])
        features, rows, _ = self.job.chunk(start)
        plain = np.ascontiguousarray(features.float().cpu().numpy())
        return {
            "start": [start],
            "shape": [list(plain.shape)],
            "features": [plain.tobytes()],
            "rows": [rows.tobytes()],
        }


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its own remarks are not for people
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to others, by no process
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("ray", "ray", "--engine ray") from None
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"include_dashboard": False} if address is None else {"address": address}
    try:
        if address is not None:
            _check_address(address)
        ray.init(log_to_driver=False, logging_level=40, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        place = f"at {address}" if address is not None else "on this machine"
        raise RunError(
            f"no Ray cluster {place}: {str(error).splitlines()[0][:200]}; start one with"
            " `ray start --head`, or leave --ray-address out"
        ) from error
    return ray


def _check_address(address: str) -> None:
    """Raise where nobody listens at ``host:port``: Ray would ask again for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():  # else a word such as auto
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def versions() -> dict[str, str]:
    """What features depend on beside the recipe, and must be the same everywhere."""
    return {"wdae": __version__, "torch": torch.__version__.partition("+")[0], "numpy": np.__version__}


def refuse_other_versions(driver: dict[str, str]) -> None:
    """Raise, on a worker, where what features depend on is not what the driver has."""
    mine = versions()
    apart = [f"{key} {value} here, {mine[key]} there" for key, value in driver.items() if mine[key] != value]
    if apart:
        raise RunError(
            f"the driver and a worker on {platform.node()} differ in versions: {', '.join(apart)};"
            " features would differ too: install the same on all machines"
        )


def _placed(config: ExtractConfig) -> ExtractConfig:
    """The recipe with whole paths: workers have working folders of their own."""
    places: dict[str, Any] = {"data": config.data if is_remote(config.data) else config.data.absolute()}
    if config.trained is not None and config.backbone != EMBEDDED:
        places["backbone"] = str(config.trained.absolute())
    elif config.backbone.startswith("onnx:"):
        places["backbone"] = f"onnx:{Path(config.backbone[5:]).absolute()}"
    return config.model_copy(update=places)


def _sent(images: ImageSet) -> ImageSet | None:
    """The data set with whole paths; None where it holds the pictures themselves: actors open it anew."""
    source = images.source
    return (
        replace(images, source=source.absolute()) if isinstance(source, FileSource | PlacedSource) else None
    )


def _reason(error: Exception) -> str:
    """What a worker said, without the way there."""
    lines = [line.strip() for line in str(error).splitlines() if "Error:" in line]
    said = lines[-1] if lines else str(error).splitlines()[0]
    return said.partition("Error: ")[2] or said
