from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from wdae.serve.engine.batching import Batcher


def test_what_waits_is_done_in_batches_on_every_thread_and_an_error_is_its_own() -> None:
    seen: list[list[int]] = []
    both = threading.Barrier(2, timeout=10)

    def work(items: Sequence[int]) -> list[int | BaseException]:
        if items[0] in (0, 4):
            both.wait()  # the first two batches are done at the same time, on two threads
        seen.append(list(items))
        return [ValueError(f"{i}") if i == 13 else 10 * i for i in items]

    async def ask() -> list[int | BaseException]:
        batcher = Batcher(work, executor, threads=2, most=4)
        first = await asyncio.gather(*(batcher(i) for i in range(30)), return_exceptions=True)
        later = await asyncio.gather(*(batcher(i) for i in range(30, 33)))  # it begins again by itself
        return [*first, *later]

    with (
        ThreadPoolExecutor(2) as executor,
        ThreadPoolExecutor(1) as own,
    ):  # a browser may run a loop in this one
        found = own.submit(asyncio.run, ask()).result()
    assert [one for i, one in enumerate(found) if i != 13] == [10 * i for i in range(33) if i != 13]
    with pytest.raises(ValueError, match="13"):
        raise found[13]  # type: ignore[misc]
    assert sorted(i for batch in seen for i in batch) == list(range(33))
    assert max(map(len, seen)) == 4 and min(map(len, seen)) == 1
