"""What a run was made with: versions, commit, machine, seed, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wdae.version import __version__


def environment(*, seed: int | None, command: Sequence[str]) -> dict[str, Any]:
    """The record that a run keeps as ``environment.json``.

    Nothing here identifies a person: no host name, no user name, no environment variables.
    """
    return {
        "wdae": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "seed": seed,
        "command": [Path(command[0]).name, *command[1:]] if command else [],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the checkout that this package runs from, ``+`` if files differ; None elsewhere."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # An installed package may lie inside somebody else's checkout; only one that tracks this file counts.
    if git("ls-files", "--error-unmatch", "version.py") is None:
        return None
    head = git("rev-parse", "HEAD")
    return head and head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu() -> str | None:
    """The GPU's name, where the command has loaded torch already: this record is not worth that import."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    name: str = torch.cuda.get_device_name()
    return name
