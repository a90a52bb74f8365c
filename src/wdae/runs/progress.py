"""Progress of long work: a live bar on a terminal, quiet elsewhere.

Where stderr is no terminal, ``WDAE_PROGRESS=plain`` gives a plain line every ten seconds, and
``WDAE_PROGRESS=off`` silences a terminal too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TextIO

from wdae.printing import printable, say

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SECONDS = {"plain": 10.0, "live": 0.1}  # between two updates of what is shown


class Progress:
    """A context manager whose ``update(n, loss=..., accuracy=...)`` advances a progress bar.

    Args:
        total: how much there is to do, in ``unit``.
        description: what is being done.
        unit: what is counted; the rate is shown in it.
        done: how much was done before, when work resumes from a checkpoint.
        file: where to show it; stderr by default.
    """

    def __init__(
        self,
        total: int,
        description: str,
        unit: str = "episodes",
        *,
        done: int = 0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.description, self.unit, self.done = total, printable(description), unit, done
        self.fields: dict[str, Any] = {}
        self._file, self._clock, self._before = file or sys.stderr, clock, done
        self._began = self._shown = clock()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        setting = os.environ.get("WDAE_PROGRESS", "")
        live = self._file.isatty() and os.environ.get("TERM") != "dumb"
        self._mode = setting if setting in ("plain", "off") else "live" if live else "off"

    def __enter__(self) -> Self:
        self._began = self._shown = self._clock()
        if self._mode == "live":
            self._bar = _bar(self._file)
            self._task = self._bar.add_task(
                self.description, total=self.total, completed=self.done, state=self._state()
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def update(self, n: int = 1, **fields: Any) -> None:
        """Count ``n`` more as done, and show the named values from now on (loss, accuracy, ...)."""
        self.done += n
        self.fields.update(fields)
        if self._mode != "off" and self._clock() - self._shown >= SECONDS[self._mode]:
            self._show()

    @property
    def rate(self) -> float:
        """Units per second since the beginning."""
        seconds = self._clock() - self._began
        return (self.done - self._before) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None before there is one."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def _state(self) -> str:
        shown = [f"{name} {_short(value)}" for name, value in self.fields.items()]
        if self.rate > 0:
            shown.append(f"{_short(self.rate)} {self.unit}/s")
        return "  ".join(shown)

    def _show(self) -> None:
        self._shown = self._clock()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, state=printable(self._state()))
        elif self._mode == "plain":
            rest = "" if self.seconds_left is None else f"  {_duration(self.seconds_left)} left"
            say(f"{self.description} {self.done}/{self.total}  {self._state()}{rest}", to=self._file)


progress = Progress


def _bar(file: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(file=file),
        refresh_per_second=5,
        speed_estimate_period=60,
    )


def _short(value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
