"""Dynamic batching: what arrives while a batch is computed becomes the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Gathers single items of many callers for a function of many items.

    Nobody waits for a batch to fill: it runs at once when a thread is free, with what there is by then.
    An exception among the results is raised to its own caller alone.

    Args:
        work: many items in, as many results out; runs in ``executor``.
        threads: of the executor, so many batches run at a time.
        most: items of a batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R | BaseException]],
        executor: Executor,
        threads: int = 1,
        most: int = 8,
    ) -> None:
        self._work, self._executor, self._threads, self._most = work, executor, threads, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._free = threads
        self._tasks: set[asyncio.Task[None]] = set()  # which the loop itself does not keep

    async def __call__(self, item: T) -> R:
        """The result of one item."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._free:
            self._free -= 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                # A few wait for less time one by one, on whichever core is free next; many are worth a batch.
                share = min(self._most, max(1, len(self._waiting) // (2 * self._threads)))
                batch, self._waiting = self._waiting[:share], self._waiting[share:]
                batch = [pair for pair in batch if not pair[1].done()]  # who has gone is not answered
                if not batch:
                    continue
                try:
                    results = await loop.run_in_executor(
                        self._executor, self._work, [item for item, _ in batch]
                    )
                except Exception as error:
                    results = [error] * len(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():
                        continue
                    if isinstance(result, BaseException):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._free += 1
