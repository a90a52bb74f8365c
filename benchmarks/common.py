"""What every benchmark shares: a record of where and when, and best-of-several timing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wdae.runs.environment import commit, environment
from wdae.storage.records import read_json, write_json

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
    command = [Path(word).name if "/" in word else word for word in sys.argv]  # where things lay is nobody's
    write_json(path, {"benchmark": name, **record, "environment": environment(seed=0, command=command)})
    return path


class Pieces:
    """A record to which every piece of a long measurement adds its own; pieces of two commits are not mixed.

    Args:
        facts: what all pieces share.
        keys: figures of the same part with the same values of these belong together.
    """

    def __init__(self, name: str, folder: Path, facts: dict[str, Any], keys: tuple[str, ...]) -> None:
        self.name, self.folder, self.keys = name, folder, keys
        self.record = facts
        if (folder / f"{name}.json").is_file():
            self.record = read_json(folder / f"{name}.json")
            made = self.record.pop("environment")["commit"]
            if made != commit():
                raise SystemExit(f"{folder / name}.json is of commit {made}, not {commit()}; move it away")

    def add(self, part: str, found: dict[str, Any]) -> None:
        """Put figures beside those of the same keys, or after the others."""
        rows = self.record.setdefault(part, [])
        same = [row for row in rows if all(row.get(key) == found.get(key) for key in self.keys)]
        if same:
            same[0].update(found)
        else:
            rows.append(found)
        print(found, keep(self.name, self.record, self.folder), flush=True)
