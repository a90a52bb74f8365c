"""Pieces of work side by side on the cores of a CPU.

Threads inside an operation wait for each other at its end, thousands of times a second, and badly so where
other programs share the cores; and an operation on all episodes at once runs at the speed of the memory. A
piece for each core, small enough for its cache, needs neither.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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


_helpers: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.clear)  # threads do not outlive a fork


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay for the next call, each of them working alone."""
    if threads not in _helpers:
        _helpers[threads] = ThreadPoolExecutor(threads, "cores", torch.set_num_threads, (1,))
    return _helpers[threads]


def side_by_side(work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
    """``work`` on every item, without gradients or autocast, for pieces of a fraction of a millisecond.

    The threads are kept between calls. What a piece computes must not depend on which thread it runs on, or
    beside which others: then the number of threads changes the speed alone.
    """
    todo = deque(enumerate(items))
    done: dict[int, Done] = {}

    def drain() -> None:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # each thread has its own settings
            while todo:
                try:
                    index, item = todo.popleft()
                except IndexError:  # another thread was quicker
                    return
                done[index] = work(item)

    threads = torch.get_num_threads()
    helpers = min(threads, len(items)) - 1
    futures = [_pool(threads - 1).submit(drain) for _ in range(helpers)]
    if futures:
        torch.set_num_threads(1)
    try:
        drain()
    finally:
        wait(futures)
        if futures:
            torch.set_num_threads(threads)
    for future in futures:
        future.result()  # raises what it raised
    return [done[i] for i in range(len(items))]
