"""Real processes in one folder: two that learn, one that is told to end, one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from forged import model

from wdae.bank import FeatureBank
from wdae.classifier import load
from wdae.cli.app import run_app
from wdae.cli.main import root

LEARN = ["--denoiser.hidden", "8", "--training.validation_episodes", "20", "--evaluation.step_episodes", "20"]
QUICK = [*LEARN, "--training.steps", "8", "--training.validate_every", "4"]
LONG = [*LEARN, "--training.steps", "100000", "--training.validate_every", "4"]
KILLED = """
import os, signal, sys
from pathlib import Path
from wdae.storage.files import atomic_file, atomic_folder
place = Path(sys.argv[1])
if sys.argv[2] == "file":
    with atomic_file(place) as temporary:
        temporary.write_bytes(bytes(1000))
        os.kill(os.getpid(), signal.SIGKILL)
with atomic_folder(place) as folder:
    (folder / "half").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def bank(small_bank: FeatureBank, tmp_path: Path) -> Path:
    small_bank.save(tmp_path / "bank")
    return tmp_path / "bank"


def start(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "wdae.cli.main", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 150
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists(), process.communicate()


def test_of_two_that_learn_one_model_the_second_is_told(bank: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    first = start("learn", bank, "-o", output, *QUICK)
    try:
        wait_for(tmp_path / ".model.unfinished" / "asked.json", first)
        first.send_signal(signal.SIGSTOP)  # it holds the folder however long the second takes to start
        second = start("learn", bank, "-o", output, *QUICK)
        said = second.communicate(timeout=150)[1]
        assert second.returncode == 2
        assert said.startswith("error: another process is changing ") and said.count("\n") == 1
    finally:
        first.send_signal(signal.SIGCONT)
    assert (first.communicate(timeout=150), first.returncode)[1] == 0
    assert len(load(output).names) == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank", "model"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_learning_that_is_told_to_end_keeps_what_was_done(
    bank: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output, checkpoint = tmp_path / "model", tmp_path / ".model.unfinished" / "denoiser.safetensors"
    process = start("learn", bank, "-o", output, *LONG)
    wait_for(checkpoint, process)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said and f"wdae learn {bank} -o {output} --resume" in said
    assert checkpoint.is_file() and not output.exists()
    left = {path.name for path in (tmp_path / ".model.unfinished").iterdir()}
    assert left == {".lock", "asked.json", "source.json", "denoiser.safetensors"}


def test_what_killed_processes_left_goes_with_the_next_change(tmp_path: Path) -> None:
    folder = model(tmp_path, lambda value, folder: None, "none")
    np.save(tmp_path / "a.npy", np.ones((2, 16), np.float32))
    whole = set(folder.iterdir())
    for name in ("model.json", "examples-000009.safetensors"):
        done = subprocess.run([sys.executable, "-c", KILLED, folder / name, "file"], check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(set(folder.iterdir()) - whole) == 1  # the second has removed what the first left
    assert run_app(root(), ["add", str(folder), "--class", "new", str(tmp_path / "a.npy")]) == 0
    assert [path.name for path in folder.glob(".*")] == [".lock"]
    assert "new" in load(folder).names


def test_what_a_killed_bank_import_left_goes_with_the_next_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.eye(6, 4, dtype=np.float32) + 1, labels=np.repeat([0, 1], 3))
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "bank", "folder"], check=False)
    assert len(list(tmp_path.glob(".bank.*"))) == 1
    words = ["bank", "import", str(tmp_path / "a.npz"), "--all-base", "-o", str(tmp_path / "bank")]
    assert run_app(root(), words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "bank"]
