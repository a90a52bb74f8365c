"""``wdae learn`` interrupted: what was done is kept, and the model becomes what it would have been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import tiny_backbone
import torch
from tiny_backbone import TinyBackbone, paint

from wdae.bank import FeatureBank
from wdae.classifier import Model, load, picture_bank
from wdae.classifier.learn_job import LearnJob, Work, job_folder
from wdae.cli.main import main
from wdae.runs.progress import Progress

COLOURS = ["red", "green", "blue", "yellow"]


def run(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return int(left.value.code or 0)


def assert_same(one: Model, other: Model) -> None:
    rows = torch.randn(5, one.base.dim, generator=torch.Generator().manual_seed(0))
    for model in (one, other):
        model.add({"okapi": rows[:2]})
    assert torch.equal(one.base.weights, other.base.weights)
    assert torch.equal(one.scores(rows), other.scores(rows))


def test_ctrl_c_during_the_denoisers_training(
    small_bank: FeatureBank,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small_bank.save(tmp_path / "bank")
    words = (
        *("--denoiser.hidden", "8", "--training.steps", "12", "--training.validation_episodes", "20"),
        *("--training.validate_every", "12", "--evaluation.step_episodes", "20"),
    )
    bars: list[Progress] = []
    plain = Progress.update

    def update(self: Progress, n: int = 1, **fields: float) -> None:
        plain(self, n, **fields)
        bars.append(self)
        if len(bars) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "update", update)
    assert run("learn", tmp_path / "bank", "-o", tmp_path / "model", *words) == 130
    assert "--resume" in capsys.readouterr().err
    assert run("learn", tmp_path / "bank", "-o", tmp_path / "model", "--resume") == 0
    assert bars[-1].done == bars[-1].total and bars[-1].rate > 0
    assert bars[-1]._before == 5 * 16  # episodes of the steps before the interruption
    monkeypatch.undo()
    assert run("learn", tmp_path / "bank", "-o", tmp_path / "whole", *words) == 0
    assert_same(load(tmp_path / "model"), load(tmp_path / "whole"))


def test_features_are_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = paint(tmp_path / "photos", COLOURS, 40)  # 160 pictures, in batches of 64
    words = ("learn", photos, "--backbone", "tiny_backbone:factory")
    assert run(*words, "-o", tmp_path / "whole") == 0
    monkeypatch.setattr(picture_bank, "_SAVED_TOGETHER", 64)
    seen: list[int] = []
    patience = 2

    def forward(self: TinyBackbone, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 2:  # fewer: somebody tries what size the features are
            if len(seen) == patience:
                raise KeyboardInterrupt
            seen.append(len(images))
        return plain(self, images)

    plain = tiny_backbone.TinyBackbone.forward
    monkeypatch.setattr(TinyBackbone, "forward", forward)
    model = tmp_path / "model"
    assert run(*words, "-o", model) == 130
    output = capsys.readouterr().err
    command = f"wdae learn {photos} --backbone tiny_backbone:factory -o {model} --resume"
    assert command in output
    assert not model.exists() and len(list(tmp_path.glob(".model.unfinished/features-*"))) == 2

    assert run(*words, "-o", model) == 2
    assert "--resume" in capsys.readouterr().err
    patience = 99
    assert run(*command.split()[1:]) == 0
    assert seen == [64, 64, 32, 64, 64, 32]  # then 160 pictures of nothing, to tell the unknown by
    assert not (tmp_path / ".model.unfinished").exists()
    assert_same(load(model), load(tmp_path / "whole"))


def test_a_killed_backbone_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    photos = paint(tmp_path / "photos", COLOURS, 10)
    words = ["learn", str(photos), "--epochs", "12", "--size", "16"]
    command = [sys.executable, "-m", "wdae.cli.main", *words, "-o", str(tmp_path / "model")]
    process = subprocess.Popen(command, env=dict(os.environ))
    checkpoint = tmp_path / ".model.unfinished" / "backbone" / "last.safetensors"
    until = time.monotonic() + 150
    while not checkpoint.is_file() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert checkpoint.is_file() and not (tmp_path / "model").exists()
    assert run("learn", photos, "-o", tmp_path / "model", "--resume") == 0  # the rest is as it was begun
    assert run(*words, "-o", tmp_path / "whole") == 0
    assert_same(load(tmp_path / "model"), load(tmp_path / "whole"))


def _fail_midway(job: AbstractContextManager[tuple[LearnJob, Work]]) -> None:
    with job as (_, work):
        work.check_source("as it was")
        work.next_features().touch()
        raise RuntimeError


def test_what_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "-o", tmp_path / "model", "--resume") == 2
    assert "nothing to resume" in capsys.readouterr().err
    photos = paint(tmp_path / "photos", COLOURS, 5)
    with pytest.raises(RuntimeError):
        _fail_midway(job_folder(LearnJob(source=photos), tmp_path / "model", resume=False))
    again = ("learn", photos, "-o", tmp_path / "model", "--resume")
    for words in (("learn", tmp_path, *again[2:]), ("learn", *again[2:]), (*again, "--backbone", "embedded")):
        assert run(*words) == 2
        said = capsys.readouterr().err
        assert "was begun with" in said and " ".join(map(str, again)) in said
    assert run(*again, "--epochs", "7", "--held-out", "0.4") == 2
    assert "was begun with another epochs, held_out" in capsys.readouterr().err
    assert run(*again) == 2
    assert "has changed since" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["source", "method", "backbone"])
def test_a_forged_folder_names_nothing_to_open(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made an unfinished folder chose the paths in it: they are compared, and never opened."""
    photos, secret = paint(tmp_path / "photos", COLOURS, 5), tmp_path / "secret"
    secret.mkdir()
    (secret / "model.safetensors").write_bytes(b"secret")
    (secret / "model.json").write_text("{}")
    with pytest.raises(RuntimeError):
        _fail_midway(job_folder(LearnJob(source=photos), tmp_path / "model", resume=False))
    asked = tmp_path / ".model.unfinished" / "asked.json"
    asked.write_text(json.dumps({**json.loads(asked.read_text()), key: str(secret)}))
    opened: list[str] = []
    plain = os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: (opened.append(str(path)), plain(path, *a, **k))[1])
    for source in ((), (photos,)):
        assert run("learn", *source, "-o", tmp_path / "model", "--resume") == 2
        assert "a file's word opens nothing" in capsys.readouterr().err
    assert any(name.endswith("asked.json") for name in opened)
    assert not any(str(secret) in name for name in opened)


def test_bad_input_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", tmp_path / "nowhere", "-o", tmp_path / "model") == 2
    assert run("learn", tmp_path, "-o", tmp_path / "model", "--epochs", "0") == 2
    assert "'epochs' must be" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
