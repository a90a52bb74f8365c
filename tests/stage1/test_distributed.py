"""Two gloo processes: the same losses as one with the same batch, a shared extraction, a clear end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import environment
from postgres_server import free_port
from stage1_samples import drawn_folder

from wdae.bank import FeatureBank
from wdae.config import load
from wdae.extract.config import ExtractConfig
from wdae.extract.run import run_extraction
from wdae.runs.run import Run
from wdae.stage1.config import Stage1Config
from wdae.stage1.run import run_pretraining

if sys.platform == "win32":
    pytest.skip("torchrun's signals are POSIX", allow_module_level=True)

RECIPE = """\
data: {{path: pictures, cache_dir: cache, size: 16, held_out: 2}}
backbone: conv4-64
backbone_options: {{image_size: 16}}
epochs: {epochs}
batch: 8
precision: float32
sync_batch_norm: true
rotation: {{turns: 1, classify_all_turns: true}}
mixup: {{layers: [0, 1, 2]}}
averaging: {{start: 0.3, refresh_batches: 2}}
augment: {{padding: 2}}
validation: {{every: {every}, episodes: 20}}
log_every: 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("distributed")
    drawn_folder(root / "pictures")
    for name, epochs, every in (("short", 2, 1), ("long", 20000, 5)):
        (root / f"{name}.yaml").write_text(RECIPE.format(epochs=epochs, every=every))
    return root


def places(root: Path) -> dict[str, str]:
    """Where pictures lie: a recipe names places below the working folder only, others go on the call."""
    return {"data.path": f"{root / 'pictures'}", "data.cache_dir": f"{root / 'cache'}"}


def pretrain(root: Path, recipe: str, output: Path) -> list[str]:
    named = [word for key, value in places(root).items() for word in (f"--{key}", value)]
    return ["pretrain", "--recipe", f"{root / recipe}", *named, "-o", f"{output}"]


def command(*words: str) -> list[str]:
    wdae = [str(Path(sys.executable).with_name("wdae")), *words, "--device", "cpu"]
    port = free_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [*torchrun, "--master-port", str(port), "--no-python", *wdae]


def done(*words: str) -> str:
    for _ in range(2):
        end = subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=200)
        if "terminate called without an active exception" not in end.stderr:
            break
        # gloo's threads, as the process ends; seen once in many runs. Begun again from nothing.
        shutil.rmtree(words[words.index("-o") + 1], ignore_errors=True)
    assert end.returncode == 0, end.stderr
    return end.stdout


def test_two_processes_train_and_extract_as_one_does(place: Path) -> None:
    run_pretraining(load(Stage1Config, place / "short.yaml", places(place)), place / "run1", device="cpu")
    out = done(*pretrain(place, "short.yaml", place / "run2"))
    assert out.count("steps,") == 1  # one process speaks for all
    rows = [Run.open(place / f"run{n}").metrics() for n in (1, 2)]
    for key in ("loss", "class_loss", "turn_loss", "accuracy", "val_1shot", "base_accuracy"):
        one, two = ([row[key] for row in some if key in row] for some in rows)
        assert len(one) > 0
        assert two == pytest.approx(one, abs=2e-4), key

    model, cache = place / "run1" / "model", place / "cache"
    config = ExtractConfig(
        data=place / "pictures", backbone=str(model), cache_dir=cache, precision="float32", chunk=16
    )
    run_extraction(config, place / "bank1", device="cpu")
    words = ["--data", f"{config.data}", "--model", f"{model}", "--cache_dir", f"{cache}"]
    done("extract", *words, "--precision", "float32", "--chunk", "16", "-o", f"{place / 'bank2'}")
    one_bank, two_bank = (FeatureBank.open(place / f"bank{n}") for n in (1, 2))
    assert torch.equal(one_bank.labels, two_bank.labels)
    assert torch.allclose(one_bank.features, two_bank.features, atol=1e-5)


def test_a_killed_process_ends_all_with_a_message(place: Path) -> None:
    run = place / "killed"
    words = command(*pretrain(place, "long.yaml", run))
    started = subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size):
            assert started.poll() is None, started.communicate()[0]
            assert time.monotonic() < deadline, "no step was made in two minutes"
            time.sleep(0.1)
        workers = workers_of(started.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        killed = time.monotonic()
        output = started.communicate(timeout=60)[0]
        assert time.monotonic() - killed < 30
    finally:
        if started.poll() is None:
            started.kill()
    assert started.returncode != 0
    assert "lost contact with another process" in output
    assert "--resume" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def workers_of(parent: int) -> list[int]:
    """The training processes that a torchrun started, by rank."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if re.search(rf"^PPid:\t{parent}$", status, re.MULTILINE):
            rank = next((v for v in variables if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank[5:])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]
