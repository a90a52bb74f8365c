"""Dynamic batching: what arrives while a batch is computed becomes the next one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Gathers single items of many callers for a function of many items.

    Nobody waits for a batch to fill. The thread that has made an item goes on with it at once where fewer
    than ``at_once`` compute, and then with what others have left meanwhile. An exception among the results is
    raised to its own caller alone.

    Args:
        work: many items in, as many results out.
        executor: its threads make items, and compute: more of them than ``at_once``.
        at_once: batches that are computed at a time.
        most: items of a batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R | BaseException]],
        executor: Executor,
        at_once: int = 1,
        most: int = 8,
    ) -> None:
        self._work, self._executor, self._at_once, self._most = work, executor, at_once, most
        self._waiting: deque[tuple[T, Future[R]]] = deque()
        self._free = at_once
        self._lock = threading.Lock()

    async def __call__(self, make: Callable[[], T]) -> R:
        """The result of the item that a function makes, which may take a while or raise an error."""
        future: Future[R] = Future()
        job = self._executor.submit(self._begin, make, future)
        job.add_done_callback(lambda done: done.cancelled() and future.cancel())  # the executor was shut down
        return await asyncio.wrap_future(future)

    def _begin(self, make: Callable[[], T], future: Future[R]) -> None:
        if future.cancelled():  # whoever asked has gone
            return
        try:
            item = make()
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        with self._lock:
            self._waiting.append((item, future))
            if not self._free:
                return  # whoever computes takes it next
            self._free -= 1
        while batch := self._next():
            try:
                results = self._work([item for item, _ in batch])
            except BaseException as error:
                results = [error] * len(batch)
            for (_, one), result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    one.set_exception(result)
                else:
                    one.set_result(result)

    def _next(self) -> list[tuple[T, Future[R]]]:
        """What to compute next; of those who wait none has gone. Where nobody does, the thread is free."""
        with self._lock:
            batch: list[tuple[T, Future[R]]] = []
            # A few wait for less time one by one, on whichever core is free next; many are worth a batch.
            share = min(self._most, max(1, len(self._waiting) // (2 * self._at_once)))
            while self._waiting and len(batch) < share:
                pair = self._waiting.popleft()
                if pair[1].set_running_or_notify_cancel():
                    batch.append(pair)
            self._free += not batch
            return batch
