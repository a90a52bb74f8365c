"""What every benchmark shares: a record of where and when, and best-of-several timing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wdae.runs.environment import environment
from wdae.storage.records import write_json

RESULTS = Path(__file__).parent / "results"


def best_of(n: int, work: Callable[[], Any]) -> float:
    """The shortest of n timings, in seconds: the others were disturbed."""
    times = []
    for _ in range(n):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def keep(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a benchmark's figures with commit and machine."""
    path = (folder or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"benchmark": name, **record, "environment": environment(seed=0, command=sys.argv)})
    return path
