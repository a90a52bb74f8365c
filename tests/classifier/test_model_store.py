"""A model on disk: what comes back, what survives a kill, and who may write."""

from __future__ import annotations

import copy
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from wdae.classifier import BaseKnowledge, Model, changing, load, save
from wdae.classifier.store import is_model
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.errors import StorageError
from wdae.storage.lock import alone

Newcomers = dict[str, torch.Tensor]


def same(a: Model, b: Model) -> None:
    """Equal states, histories and predictions, to the last bit."""
    assert a.names == b.names
    assert a.history == b.history
    queries = torch.randn(20, a.base.dim, generator=torch.Generator().manual_seed(0))
    assert torch.equal(a.scores(queries), b.scores(queries))


def test_a_model_comes_back_as_it_was(tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers) -> None:
    model = Model(base)
    model.add(
        {"okapi": newcomers["new 0"][:3], "café": newcomers["new 1"][:1]},
        sources={"okapi": ["a.jpg", "b.jpg", "c.jpg"]},
        pictures={"okapi": torch.arange(3 * 4 * 4 * 3).view(3, 4, 4, 3).to(torch.uint8)},
    )
    model.remove(["café"])
    save(model, tmp_path / "model")
    back = load(tmp_path / "model")
    same(model, back)
    assert [e.source for e in back.examples_of("okapi")] == ["a.jpg", "b.jpg", "c.jpg"]
    picture = back.examples_of("okapi")[1].picture
    assert picture is not None and torch.equal(picture, model.examples[1].picture)  # type: ignore[arg-type]
    back.undo()
    model.undo()
    same(model, back)
    assert back.base.calibration == base.calibration
    assert not any(path.suffix in (".pkl", ".pt", ".bin") for path in (tmp_path / "model").iterdir())


def test_changes_are_added_to_the_folder(tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers) -> None:
    save(Model(base), tmp_path / "model")
    learned = (tmp_path / "model" / "base.safetensors").stat().st_mtime_ns
    with changing(tmp_path / "model") as model:
        model.add({"a": newcomers["new 0"][:2]})
    with changing(tmp_path / "model") as model:
        model.add({"b": newcomers["new 1"][:2]})
        model.remove(["a"])
    with changing(tmp_path / "model") as model:
        model.undo()
    same(load(tmp_path / "model"), model)
    assert model.added == ("a", "b")
    assert (tmp_path / "model" / "base.safetensors").stat().st_mtime_ns == learned


def test_a_body_that_fails_changes_nothing(tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers) -> None:
    save(Model(base), tmp_path / "model")
    before = (tmp_path / "model" / "model.json").read_bytes()

    def fail() -> None:
        with changing(tmp_path / "model") as model:
            model.add({"a": newcomers["new 0"][:2]})
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "model" / "model.json").read_bytes() == before


def test_saving_again_brings_the_folder_up_to_date(
    tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers
) -> None:
    model = Model(base)
    save(model, tmp_path / "model")
    model.add({"a": newcomers["new 0"][:2]})
    save(model, tmp_path / "model")
    same(load(tmp_path / "model"), model)
    other = Model(base)
    other.add({"b": newcomers["new 1"][:2]})
    with pytest.raises(StorageError, match="another model, or changes that this one lacks"):
        save(other, tmp_path / "model")
    same(load(tmp_path / "model"), model)


def test_a_model_that_scores_otherwise_is_not_taken_for_the_one_that_is_there(
    tmp_path: Path, base: BaseKnowledge
) -> None:
    """The same base weights, another balance: what is there would have answered in its place."""
    save(Model(base), tmp_path / "model")
    method = copy.copy(base.method)
    method.balance = replace(base.calibration, gain=2 * base.calibration.gain)
    with pytest.raises(StorageError, match="another model"):
        save(Model(replace(base, method=method)), tmp_path / "model")
    assert load(tmp_path / "model").base.calibration.gain == base.calibration.gain


def test_fifty_one_by_one_equal_directly(tmp_path: Path, base: BaseKnowledge) -> None:
    generator = torch.Generator().manual_seed(5)
    classes = {f"c{i:02d}": torch.randn(1 + i % 4, base.dim, generator=generator) for i in range(50)}
    model = Model(base)
    save(model, tmp_path / "model")
    for name in random.Random(0).sample(sorted(classes), 50):
        with changing(tmp_path / "model") as model:
            model.add({name: classes[name]})
    gone = sorted(classes)[::2]
    model = load(tmp_path / "model")
    model.remove(gone)
    half = Model(base)
    half.add({name: rows for name, rows in classes.items() if name not in gone})
    whole = Model(base)
    whole.add(classes)
    queries = torch.randn(100, base.dim, generator=generator)
    for got, wanted in ((model, half), (model, whole)):
        place = {name: i for i, name in enumerate(got.names)}
        order = [place[name] for name in wanted.names]
        assert torch.equal(got.scores(queries)[:, order], wanted.scores(queries))
        model.undo()


def test_killed_at_any_moment_it_is_the_old_or_the_new_state(
    tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers
) -> None:
    """A process that runs ``wdae add`` without end is killed 20 times; all it finished is there, whole."""
    path = tmp_path / "model"
    save(Model(base), path)
    np.save(tmp_path / "new.npy", newcomers["new 2"][:2].numpy())
    rng = random.Random(1)
    done = 0
    for round_ in range(20):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # the warmed process: nothing is imported again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            try:
                for i in range(1000):
                    words = ["add", path, "--class", f"r{round_}n{i}", tmp_path / "new.npy"]
                    assert run_app(root(), list(map(str, words))) == 0
                    os.write(writer, b".")
            finally:
                os._exit(1)
        os.close(writer)
        os.read(reader, 1)  # it has begun to finish
        time.sleep(rng.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        finished = 1
        while chunk := os.read(reader, 4096):
            finished += len(chunk)
        os.close(reader)
        model = load(path)
        assert len(model.added) - done in (finished, finished + 1)  # all it output of, and perhaps one more
        done = len(model.added)
        assert torch.isfinite(model.scores(newcomers["new 0"])).all()
    with changing(path) as model:  # the lock died with its holder
        model.add({"last": newcomers["new 3"][:1]})


def test_two_writers_lose_nothing(tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers) -> None:
    path = tmp_path / "model"
    save(Model(base), path)
    children = []
    for writer in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for i in range(5):
                    with changing(path) as model:
                        model.add({f"w{writer}n{i}": newcomers["new 1"][:2]})
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert set(load(path).added) == {f"w{w}n{i}" for w in range(3) for i in range(5)}


def test_who_waits_too_long_is_told(tmp_path: Path, base: BaseKnowledge, newcomers: Newcomers) -> None:
    path = tmp_path / "model"
    save(Model(base), path)
    with (
        alone(path),
        pytest.raises(StorageError, match=r"another process is changing .* try again"),
        changing(path, patience=0.05) as model,
    ):
        model.add({"a": newcomers["new 1"][:2]})
    assert load(path).added == ()


def test_a_folder_of_something_else_is_no_model(tmp_path: Path) -> None:
    assert not is_model(tmp_path)
    with pytest.raises(StorageError, match="not a model"), changing(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
