from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from wdae.serve.engine.batching import Batcher


def test_what_waits_is_done_in_batches_on_every_thread_and_an_error_is_its_own() -> None:
    seen: list[list[int]] = []
    made: list[int] = []
    both, gone, every = threading.Barrier(2, timeout=10), threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int | BaseException]:
        if not every.is_set():
            both.wait()  # the first two batches are done at the same time, on two threads
            every.wait(10)
        seen.append(list(items))
        return [ValueError(f"{i}") if i == 13 else 10 * i for i in items]

    def make(i: int) -> int:
        gone.wait(10)  # nothing is made before one caller has gone
        made.append(i)
        if i == 29:
            every.set()
        if i == 7:
            raise KeyError(i)
        return i

    async def ask() -> list[int | BaseException]:
        batcher = Batcher(work, executor, at_once=2, most=4)
        asked = [asyncio.ensure_future(batcher(partial(make, i))) for i in range(30)]
        await asyncio.sleep(0)
        asked[20].cancel()  # who has gone is not answered
        await asyncio.sleep(0.05)
        gone.set()
        first = await asyncio.gather(*asked, return_exceptions=True)
        later = await asyncio.gather(*(batcher(partial(make, i)) for i in range(30, 33)))  # it begins again
        return [*first, *later]

    with (
        ThreadPoolExecutor(4) as executor,
        ThreadPoolExecutor(1) as own,
    ):  # a browser may run a loop in this one
        found = own.submit(asyncio.run, ask()).result()
    good = [i for i in range(33) if i not in (7, 13, 20)]
    assert [found[i] for i in good] == [10 * i for i in good]
    for i, error in ((7, KeyError), (13, ValueError), (20, asyncio.CancelledError)):
        with pytest.raises(error):
            raise found[i]  # type: ignore[misc]
    assert sorted(i for batch in seen for i in batch) == sorted([*good, 13])
    assert sorted(made) == [i for i in range(33) if i != 20]
    assert max(map(len, seen)) == 4 and min(map(len, seen)) == 1


def test_who_waits_when_the_threads_end_is_told() -> None:
    begun, end = threading.Event(), threading.Event()

    def make() -> int:
        begun.set()
        end.wait(10)
        return 1

    async def ask() -> list[int | BaseException]:
        executor = ThreadPoolExecutor(1)
        batcher: Batcher[int, int] = Batcher(list, executor)
        asked = [asyncio.ensure_future(batcher(make)) for _ in range(3)]
        await asyncio.sleep(0)
        begun.wait(10)
        executor.shutdown(wait=False, cancel_futures=True)
        end.set()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    with ThreadPoolExecutor(1) as own:
        found = own.submit(asyncio.run, ask()).result()
    assert found[0] == 1 and all(isinstance(one, asyncio.CancelledError) for one in found[1:])
