"""Ctrl-C between two steps, never within one: what is saved then is a state training can go on from."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back and yield a function that says whether it came; a second one goes through at once.

    Within a step, weights, running statistics and the step's number do not belong together yet. Outside
    the main thread, where Python delivers no signals, nothing is held.
    """
    came = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    own = threading.current_thread() is threading.main_thread()
    own = own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: came
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
