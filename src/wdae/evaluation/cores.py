"""Chunks of episodes side by side on the cores of a CPU.

Threads inside an operation wait for each other at its end, thousands of times a second, and badly so where
other programs share the cores. A chunk for each core needs no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


def map_on_cores(work: Callable[[Item], Done], items: Sequence[Item], device: torch.device) -> Iterator[Done]:
    """``work`` on every item, without gradients, results in order; on a CPU, one item for each thread."""
    threads = torch.get_num_threads()
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
        torch.set_num_threads(threads)
