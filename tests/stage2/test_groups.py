"""Stage 2 by several processes: the same weights as by one, and one that is killed can be resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import environment
from postgres_server import free_port

from wdae import synthetic_bank
from wdae.errors import RecipeError
from wdae.methods.saved import load_method
from wdae.runtime.distributed import Team
from wdae.stage2 import train as stage2_train
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.train import train
from wdae.storage.tensors import load_tensors

if os.name != "posix":
    pytest.skip("torchrun's signals are POSIX", allow_module_level=True)


def command(processes: int, *words: str) -> list[str]:
    wdae = ["-c", "from wdae.cli.main import main; import sys; main(sys.argv[1:])", "train", *words]
    if processes == 1:
        return [sys.executable, *wdae]
    port = free_port()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*torchrun, "--master-port", str(port), "--no-python", sys.executable, *wdae]


def options(place: Path, name: str, steps: int) -> list[str]:
    given = {
        "denoiser.hidden": 4,
        "training.steps": steps,
        "training.n_fake": 4,
        "training.groups": 2,
        "training.episodes_per_step": 4,
        "training.validate_every": 4,
        "training.validation_episodes": 20,
        "evaluation.step_episodes": 10,
        "evaluation.episodes": 10,
        "device": "cpu",
    }
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    return ["--bank", f"{place / 'bank'}", "-o", f"{place / name}", *words]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("groups")
    synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4).save(root / "bank")
    return root


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(run / "model.safetensors")


def test_two_processes_come_to_the_very_weights_of_one(place: Path) -> None:
    for n in (1, 2):
        words = command(n, *options(place, f"run{n}", steps=8))
        end = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=250)
        assert end.returncode == 0, end.stderr
    one, two = (weights(place / f"run{n}") for n in (1, 2))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    methods = [load_method(place / f"run{n}" / "model.safetensors") for n in (1, 2)]
    assert methods[0].describe() == methods[1].describe()


@pytest.mark.long
def test_a_killed_process_is_resumed_to_the_same_weights(place: Path) -> None:
    steps, whole, cut = 400, "whole", "cut"
    subprocess.run(command(1, *options(place, whole, steps)), check=True, env=environment(), timeout=250)
    started = subprocess.Popen(command(2, *options(place, cut, steps)), env=environment())
    deadline = time.monotonic() + 120
    while not (place / cut / "checkpoint.safetensors").exists():
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    assert started.wait(timeout=90) != 0
    assert not (place / cut / "model.safetensors").exists()
    words = command(2, *options(place, cut, steps), "--resume")
    subprocess.run(words, check=True, env=environment(), timeout=250)
    one, two = weights(place / whole), weights(place / cut)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_groups_learn_as_well_and_are_told_apart() -> None:
    bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)

    def weight(groups: int) -> torch.Tensor:
        short = TrainingConfig(steps=3, n_fake=4, validation_episodes=20, groups=groups)
        recipe = MetaRecipe(denoiser=DenoiserConfig(hidden=4), training=short, device="cpu")
        return next(train(recipe, bank).denoiser.parameters()).detach()

    one, two, again = weight(1), weight(2), weight(2)
    assert torch.equal(two, again) and not torch.equal(one, two)
    assert torch.allclose(one, two, atol=0.1)


def test_every_group_of_every_step_draws_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seeds = stage2_train._reseed, []

    def noted(generator: torch.Generator | None, seed: int, device: torch.device) -> None:
        seeds.append(seed)
        real(generator, seed, device)

    monkeypatch.setattr(stage2_train, "_reseed", noted)
    bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    short = TrainingConfig(steps=3, n_fake=4, validation_episodes=20, groups=2)
    train(MetaRecipe(denoiser=DenoiserConfig(hidden=4), training=short, device="cpu"), bank)
    assert len(seeds) == len(set(seeds)) == 6


def test_groups_that_nobody_can_share_out() -> None:
    bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    short = TrainingConfig(steps=3, n_fake=4, validation_episodes=20, groups=3)
    recipe = MetaRecipe(denoiser=DenoiserConfig(hidden=4), training=short, device="cpu")
    with pytest.raises(RecipeError, match=r"training\.groups is 3, with 8 episodes a step and 1 processes"):
        train(recipe, bank)
    recipe = MetaRecipe(training=TrainingConfig(groups=1), device="cpu")
    with pytest.raises(RecipeError, match="and 2 processes"):
        train(recipe, bank, team=Team(0, 2, torch.device("cpu")))
