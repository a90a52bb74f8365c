"""Pieces of work on the cores of a CPU.

Threads inside an operation wait for each other at its end, thousands of times a second, and badly so where
other programs share the cores; and an operation on all episodes at once runs at the speed of the memory. A
piece of work on one core, small enough for its cache, needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


_kept: ContextVar[int | None] = ContextVar("threads kept for pieces of work", default=None)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, give each operation one thread; whole pieces (:func:`map_on_cores`) still have them all.

    Steps of training are so small that waiting for a second, busy core costs more than it brings; and sums
    are added up in one order, whatever the number of threads.
    """
    if device.type != "cpu":
        yield
        return
    threads = torch.get_num_threads()
    token = _kept.set(_kept.get() or threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _kept.reset(token)


def map_on_cores(work: Callable[[Item], Done], items: Sequence[Item], device: torch.device) -> Iterator[Done]:
    """``work`` on every item, without gradients, results in order; on a CPU, one item for each thread."""
    before = torch.get_num_threads()
    threads = _kept.get() or before
    if device.type != "cpu" or threads == 1 or len(items) < 2:
        with torch.no_grad():
            yield from map(work, items)
        return

    def alone(item: Item) -> Done:
        with torch.no_grad():  # each thread has its own setting
            return work(item)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(alone, items)
    finally:
        torch.set_num_threads(before)


def in_pieces(x: torch.Tensor) -> bool:
    """Whether to work on ``x`` in pieces: on a CPU, but not while torch.compile records the operations."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def piece_by_piece(work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
    """``work`` on every item with one thread, without gradients or autocast; pieces fit a core's cache."""
    with one_thread(torch.device("cpu")), torch.no_grad(), torch.autocast("cpu", enabled=False):
        return [work(item) for item in items]
