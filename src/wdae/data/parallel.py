"""The same work on chunks of a picture source, spread over processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from wdae.data.source import ImageSource
from wdae.errors import DataError
from wdae.runs.progress import progress
from wdae.runtime.process import available_cores

Result = TypeVar("Result")
Work = Callable[..., Result]
"""``work(source, start, stop, *arguments)``; a function of a module, so that a process can be told of it."""

_FEW = 64  # below this many pictures, starting processes costs more than it saves

_source: ImageSource | None = None


def in_chunks(
    work: Work[Result], source: ImageSource, *arguments: Any, chunk: int, workers: int | None, title: str
) -> Iterator[tuple[int, Result]]:
    """Yield (first picture, result) of ``work`` on every chunk of ``source``, as they finish.

    Args:
        chunk: pictures in one piece of work, at most.
        workers: processes; None for as many as cores, 0 or 1 for this process alone.
        title: of the progress bar.
    """
    workers = available_cores() if workers is None else workers
    chunk = min(chunk, math.ceil(len(source) / (4 * max(1, workers))))  # something to do for everybody
    spans = [(start, min(start + chunk, len(source))) for start in range(0, len(source), chunk)]
    if workers <= 1 or len(source) < _FEW:
        for start, stop in spans:
            yield start, work(source, start, stop, *arguments)
        return
    # Forked workers share an in-memory source instead of copying it, start at once, and do not need the
    # caller's script to guard its main part; they touch arrays and pictures only, never torch.
    method = "fork" if sys.platform == "linux" else "spawn"
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context(method), _remember, (source,))
    try:
        futures: dict[Future[Result], int] = {
            pool.submit(_on_remembered, work, start, stop, *arguments): start for start, stop in spans
        }
        # The bar has a thread, so it starts after the fork.
        with progress(len(source), title, "pictures") as bar:
            for future in as_completed(futures):
                start = futures.pop(future)
                yield start, future.result()
                bar.update(min(chunk, len(source) - start))
    except BrokenProcessPool as error:
        raise DataError(
            f"a process that decoded pictures was killed, most likely for want of memory;"
            f" try fewer than {workers} workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _remember(source: ImageSource) -> None:
    global _source
    _source = source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to report, once
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _on_remembered(work: Work[Result], start: int, stop: int, *arguments: Any) -> Result:
    assert _source is not None
    return work(_source, start, stop, *arguments)
