from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wdae.runtime.waiting import BRIEFLY, wait_briefly


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BRIEFLY:
        monkeypatch.delenv(name, raising=False)
    wait_briefly()
    assert all(os.environ[name] == value for name, value in BRIEFLY.items())
    for name in BRIEFLY:
        monkeypatch.setenv(name, "7")
    wait_briefly()
    assert all(os.environ[name] == "7" for name in BRIEFLY)


def test_the_command_line_sets_it_before_torch_is_loaded() -> None:
    program = (
        "import sys, wdae.cli.app as app, wdae.runtime.waiting as waiting\n"
        "app.wait_briefly = lambda: print('torch' in sys.modules)\n"
        "app.run_app(__import__('wdae.cli.main').cli.main.root(), ['methods', '--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "False"
