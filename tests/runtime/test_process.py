from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wdae.runtime.process import SHORT_WAIT, shorten_thread_waits


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SHORT_WAIT:
        monkeypatch.delenv(name, raising=False)
    shorten_thread_waits()
    assert all(os.environ[name] == value for name, value in SHORT_WAIT.items())
    for name in SHORT_WAIT:
        monkeypatch.setenv(name, "7")
    shorten_thread_waits()
    assert all(os.environ[name] == "7" for name in SHORT_WAIT)


def test_the_command_line_sets_it_before_torch_is_loaded() -> None:
    program = (
        "import sys, wdae.cli.app as app, wdae.runtime.process\n"
        "app.shorten_thread_waits = lambda: print('torch' in sys.modules)\n"
        "app.run_app(__import__('wdae.cli.main').cli.main.root(), ['methods', '--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "False"
