import io
import os
import pty
import subprocess
import sys
import time

import pytest

from wdae.runs.progress import Progress, progress

WORK = """
from wdae.runs.progress import progress
with progress(300, "training", unit="episodes") as bar:
    for i in range(3):
        bar.update(100, loss=1.5 - i / 2, accuracy=0.5)
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def on_a_terminal(code: str, **variables: str) -> str:
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **variables}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=inner, stdout=inner, env=environment)
    os.close(inner)
    out = b""
    while True:
        try:
            piece = os.read(outer, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        out += piece
    assert process.wait() == 0
    os.close(outer)
    return out.decode()


def test_a_live_bar_on_a_terminal() -> None:
    shown = on_a_terminal(WORK)
    for word in ("training", "300/300", "loss 0.5", "accuracy 0.5", "episodes/s", "left"):
        assert word in shown


def test_a_terminal_can_be_silenced() -> None:
    assert on_a_terminal(WORK, WDAE_PROGRESS="off") == ""


def test_quiet_when_not_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_quiet_work_does_not_import_rich() -> None:
    code = WORK + "\nimport sys\nassert not any(name.startswith('rich') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_plain_lines_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDAE_PROGRESS", "plain")
    clock, out = Clock(), io.StringIO()
    with Progress(1000, "training", "episodes", done=100, file=out, clock=clock) as bar:
        for i in range(1, 31):
            clock.now = float(i)
            bar.update(10, loss=1 / i)
        assert bar.rate == 10
        assert bar.seconds_left == 60
    lines = out.getvalue().splitlines()
    assert lines[0] == "training 200/1000  loss 0.1  10 episodes/s  1:20 left"
    assert len(lines) == 4  # at 10, 20 and 30 seconds, and at the end


def test_updates_cost_next_to_nothing() -> None:
    out = io.StringIO()
    with progress(100_000, "training", file=out) as bar:
        began = time.perf_counter()
        for _ in range(10_000):
            bar.update(1, loss=0.5)
        assert (time.perf_counter() - began) / 10_000 < 1e-4
    assert bar.done == 10_000


def test_an_exception_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt), progress(10, "training", file=io.StringIO()):
        raise KeyboardInterrupt
