"""Ctrl-C, SIGTERM and SIGHUP end a command alike, and never within a step of training."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_last: int = signal.SIGINT
_owner = 0


def exit_status() -> int:
    """The status of a command that was interrupted: 128 and the number of the signal."""
    return 128 + _last


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; those that are ignored stay so."""
    global _last, _owner
    _last, _owner = signal.SIGINT, os.getpid()
    with _handled(_interrupt, signal.SIG_DFL):
        yield


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold interrupts back and yield a function that says whether one came; a second goes through at once.

    Within a step, weights, running statistics and the step's number do not belong together yet. Outside
    the main thread, where Python delivers no signals, nothing is held.
    """
    came = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came or os.getpid() != _owner:
            _interrupt(number, frame)
        global _last
        _last = number
        came = True

    global _owner
    _owner = os.getpid()
    with _handled(hold, signal.default_int_handler, _interrupt):
        yield lambda: came


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last
    if os.getpid() != _owner:  # a worker process that was forked: it ends as it would have without us
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _last = number
    raise KeyboardInterrupt


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *instead_of: object) -> Iterator[None]:
    """Handle the ending signals that are handled by one of ``instead_of`` now."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: now for number in _ENDING if (now := signal.getsignal(number)) in instead_of}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, now in before.items():
            signal.signal(number, now)
