"""More than one device: the same command under ``torchrun``, on one machine or several.

Gradients are averaged by DistributedDataParallel. BatchNorm uses each process's own share of the batch
unless the recipe says ``sync_batch_norm``. When a process dies the others stop too: torchrun
stops those of one machine, and every process watches the others' heartbeats.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from wdae.errors import RunError, first_line
from wdae.runtime.device import pick_device

BEAT_S, PATIENCE_S = 1.0, 20.0


@dataclass(frozen=True)
class Team:
    """The processes of one command: which this is, of how many, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and progress."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes of a tensor that each has."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.size
        return values

    def from_main(self, values: Sequence[float]) -> list[float]:
        """The main process's numbers, on every process; there are as many everywhere."""
        if self.size == 1:
            return list(values)
        shared = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        found: list[float] = shared.tolist()
        return found

    def text_from_main(self, text: str = "") -> str:
        """The main process's text, on every process."""
        if self.size == 1:
            return text
        (length,) = self.from_main([len(text.encode())])
        letters = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.is_main:
            letters.copy_(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
        dist.broadcast(letters, src=0)
        return bytes(letters.cpu().numpy().tobytes()).decode()

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, each with as many, in the order of their ranks."""
        if self.size == 1:
            return rows
        found = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(found, rows)
        return torch.cat(found)

    def agree(self, flag: bool) -> bool:
        """The main process's answer, on every process."""
        return bool(self.from_main([flag])[0])

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            self.agree(True)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over processes."""
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def choose_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device asked for, else this process's GPU where there is one, else the CPU."""
    device = pick_device(name or "auto")
    if device.type == "cuda":
        if device.index is None:
            device = torch.device("cuda", local_rank)
        if device.index >= torch.cuda.device_count():
            raise RunError(
                f"process {local_rank} of this machine has no GPU of its own: there are "
                f"{torch.cuda.device_count()}; start at most that many with --nproc-per-node"
            )
        torch.cuda.set_device(device)
    return device


@contextmanager
def join(device: str | None = None) -> Iterator[Team]:
    """This process's rank among those that ``torchrun`` started; alone without it.

    A lost process becomes one clear message on every other, within seconds.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team(0, 1, choose_device(device))
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    place = choose_device(device, local_rank)
    store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=300))))
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo", store=store, rank=rank, world_size=size
    )
    stop, heart = _watch(PrefixStore("wdae-heartbeat", store.clone()), rank, size)
    try:
        yield Team(rank, size, place)
        Team(rank, size, place).barrier()
        stop.set()
        heart.join(timeout=PATIENCE_S)  # a thread inside the store while Python shuts down would abort it
    except (dist.DistBackendError, RuntimeError) as error:
        if not _is_lost_contact(error):
            raise
        raise RunError(_lost(rank, size, first_line(error))) from error
    finally:
        stop.set()
        dist.destroy_process_group()


def _is_lost_contact(error: Exception) -> bool:
    words = ("connection closed", "connection reset", "gloo", "nccl", "broken pipe", "socket", "timed out")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def _lost(rank: int, size: int, reason: str) -> str:
    return (
        f"process {rank} of {size} stops: it lost contact with another process ({reason}); "
        "look for that one's message, then go on from the last checkpoint with --resume"
    )


def _watch(store: Any, rank: int, size: int) -> tuple[threading.Event, threading.Thread]:
    """Send heartbeats, and end this process when another one's stop.

    A collective that waits for a dead process cannot be interrupted from Python, hence the hard exit.
    """
    stop = threading.Event()

    def beat() -> None:
        heard: dict[int, tuple[bytes, float]] = {}
        count = 0
        while not stop.wait(BEAT_S):
            count += 1
            try:
                store.set(f"{rank}", str(count))
                silent = None
                for other in range(size):
                    if other == rank or not store.check([f"{other}"]):
                        continue
                    value, now = store.get(f"{other}"), time.monotonic()
                    if other not in heard or heard[other][0] != value:
                        heard[other] = (value, now)
                    elif now - heard[other][1] > PATIENCE_S:
                        silent = f"process {other} has been silent for {PATIENCE_S:.0f} s"
            except RuntimeError:
                silent = "the process that keeps the list of processes is gone"
            if silent and not stop.is_set():
                print(f"error: {_lost(rank, size, silent)}", file=sys.stderr, flush=True)
                os._exit(3)

    heart = threading.Thread(target=beat, name="wdae-heartbeat", daemon=True)
    heart.start()
    return stop, heart


class _Sum(torch.autograd.Function):
    """The sum over processes; each process's gradient reaches every summand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        out = grads[0].contiguous().clone()
        dist.all_reduce(out)
        return out


def _summed(x: Tensor) -> Tensor:
    out: Tensor = _Sum.apply(x)
    return out


class SharedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm over the batches of all processes together, on any device.

    torch's own SyncBatchNorm is for GPUs only; this one all-reduces the mean, then the variance about it,
    and lets gradients flow through both. Every process must have as many rows.
    """

    def forward(self, x: Tensor) -> Tensor:
        """As nn.BatchNorm2d, with statistics over all processes in training."""
        if not self.training:
            return super().forward(x)
        size, wide = dist.get_world_size(), x.float()
        mean = _summed(wide.mean(dim=(0, 2, 3))) / size
        centred = wide - mean[:, None, None]
        variance = _summed(centred.square().mean(dim=(0, 2, 3))) / size
        with torch.no_grad():
            n = size * x.numel() / x.shape[1]
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
            if self.running_mean is not None and self.running_var is not None:
                share = 1.0 / float(self.num_batches_tracked or 1) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.detach(), share)
                self.running_var.lerp_(variance.detach() * (n / (n - 1)), share)
        out: Tensor = centred * torch.rsqrt(variance + self.eps)[:, None, None]
        return (out * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def share_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Make every BatchNorm take its statistics over all processes: torch's own on GPUs, ours elsewhere."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            kind = nn.SyncBatchNorm if device.type == "cuda" else SharedBatchNorm2d
            new = kind(child.num_features, child.eps, child.momentum)
            new.load_state_dict(child.state_dict())
            setattr(model, name, new.to(child.weight.device))
        else:
            share_batch_norm(child, device)
