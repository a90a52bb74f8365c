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

    Nobody waits for a batch to fill: it runs at once when the function is free, with what there is by then.
    An exception among the results is raised to its own caller alone.

    Args:
        work: many items in, as many results out; runs in ``executor``.
        most: items of a batch.
    """

    def __init__(
        self, work: Callable[[Sequence[T]], Sequence[R | BaseException]], executor: Executor, most: int = 16
    ) -> None:
        self._work, self._executor, self._most = work, executor, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: T) -> R:
        """The result of one item."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
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
            self._task = None
