"""``kill -9`` in training, ten times at random moments: resumed to the end, the weights are bit-identical."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.storage.checkpoint import load_checkpoint
from wdae.storage.tensors import load_tensors

KILLS = 10
STEPS, EVERY = 320, 4  # 80 checkpoints

# Imports once, then forks a process for each sitting asked for: resume if there is a checkpoint, say each
# line as it is logged, keep the final weights.
PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
import torch._dynamo  # what the first optimiser step would import, in every sitting anew
torch.set_num_threads(1)
from wdae.bank import FeatureBank
from wdae.storage.tensors import save_tensors
from wdae.stage2.train import train
from wdae.stage2.config import MetaRecipe

def say(**what):
    print(json.dumps(what), flush=True)

def sitting(folder):
    checkpoint = folder / "checkpoint.safetensors"
    bank, recipe = FeatureBank.open(sys.argv[1]), MetaRecipe(**json.loads(sys.argv[2]))
    resume = checkpoint.exists()
    learner = train(recipe, bank, checkpoint=checkpoint, resume=resume, log=lambda line: say(**line))
    save_tensors(folder / "final.safetensors", learner.state_dict())

for folder in sys.stdin:
    child = os.fork()
    if not child:
        try:
            sitting(Path(folder.strip()))
        except BaseException as error:
            say(error=repr(error))
            os._exit(1)
        os._exit(0)
    say(process=child)
    say(ended=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

RECIPE = {
    "device": "cpu",
    "precision": "float32",
    "denoiser": {"hidden": 24, "dropout": 0.9, "neighbours": 4},
    "training": {
        "n_fake": 6,
        "queries_per_novel": 3,
        "base_queries": 20,
        "shots": [1, 2],
        "steps": STEPS,
        "episodes_per_step": 4,
        "validate_every": EVERY,
        "validation_episodes": 8,
        "keep": "best",
    },
    "evaluation": {"queries": 6},
}


class Nursery:
    """The program above, and the sitting now in progress."""

    def __init__(self, bank: Path) -> None:
        arguments = [sys.executable, "-c", PROGRAM, str(bank), json.dumps(RECIPE)]
        self.program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sitting = 0

    def begin(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        assert self.program.stdin is not None
        self.program.stdin.write(f"{folder}\n")
        self.program.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next thing said; the number of the process is noted on the way."""
        assert self.program.stdout is not None
        while "process" in (said := json.loads(self.program.stdout.readline())):
            self.sitting = said["process"]
        assert "error" not in said, said
        return said

    def ended(self) -> int:
        """Wait for the end of the sitting: its exit status."""
        while "ended" not in (said := self.hear()):
            pass
        return int(said["ended"])


@pytest.fixture
def nursery(small_bank: FeatureBank, tmp_path: Path) -> Iterator[Nursery]:
    small_bank.save(tmp_path / "bank")
    nursery = Nursery(tmp_path / "bank")
    yield nursery
    nursery.program.communicate(timeout=60)  # closes its input, which ends it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_ten_kills_change_nothing(nursery: Nursery, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    nursery.begin(straight)
    times = []
    while "ended" not in (said := nursery.hear()):
        times.append(time.monotonic())
    assert said["ended"] == 0
    interval = (times[-1] - times[0]) / (len(times) - 1)

    source = random.Random(0)
    reached: list[int] = []
    for kill in range(KILLS):
        nursery.begin(killed)
        nursery.hear()  # the first line: training is under way, the clock starts
        # On average 2.5 checkpoints later, at any point of a step, a validation or a write.
        time.sleep(source.uniform(0, 5 * interval))
        os.kill(nursery.sitting, signal.SIGKILL)
        assert nursery.ended() == -signal.SIGKILL, f"kill {kill + 1} came too late: training had ended"
        assert not (killed / "final.safetensors").exists()
        checkpoint = killed / "checkpoint.safetensors"
        if checkpoint.exists():  # the first kill may come before the first one is written
            step = load_checkpoint(checkpoint).state["progress"]["step"]  # refuses a half-written file
            assert step % EVERY == 0
            assert not reached or step >= reached[-1]
            reached.append(step)
    assert len(reached) >= KILLS - 1
    assert len(set(reached)) > KILLS // 2  # the kills fell at different points of the training
    assert reached[-1] < STEPS

    nursery.begin(killed)
    assert nursery.ended() == 0
    expected, resumed = (load_tensors(folder / "final.safetensors") for folder in (straight, killed))
    assert set(expected) == set(resumed)
    for name, tensor in expected.items():
        assert torch.equal(tensor, resumed[name]), name
    history = [
        load_checkpoint(f / "checkpoint.safetensors").state["progress"]["history"] for f in (straight, killed)
    ]
    assert history[0] == history[1]
    # What killed writers left behind is swept away by those that follow.
    assert sorted(p.name for p in killed.iterdir()) == ["checkpoint.safetensors", "final.safetensors"]
