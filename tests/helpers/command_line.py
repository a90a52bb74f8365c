"""Commands run as a user types them: in this process, or in others."""

from __future__ import annotations

import os

import pytest

from wdae.cli.main import main


def wdae(*words: object) -> int:
    """Run a command in this process and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def succeeds(*words: object) -> None:
    """Run a command in this process that has to end well."""
    assert wdae(*words) == 0, words


def environment() -> dict[str, str]:
    """The environment of a process that is started beside others: one thread, and quiet."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return kept | {"OMP_NUM_THREADS": "1", "WDAE_PROGRESS": "off"}
