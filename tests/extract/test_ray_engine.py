"""Extraction and prediction by Ray: what one process makes, and what is said where there is no cluster."""

from __future__ import annotations

import builtins
import csv
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stage1_samples import extraction

from wdae.bank import FeatureBank
from wdae.cli.main import main
from wdae.data import FileSource, open_dataset
from wdae.data.source import ArraySource
from wdae.errors import MissingExtraError, RunError
from wdae.extract import ray_engine
from wdae.extract.run import extract
from wdae.runtime.distributed import Team

ray = pytest.importorskip("ray")
ALONE = Team(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
    yield
    ray.shutdown()


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_cluster_makes_the_bank_of_one_process_and_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extraction(tmp_path)
    monkeypatch.chdir(tmp_path)  # workers have working folders of their own
    config = extraction(tmp_path, chunk=16, data=Path("pictures"), backbone="model")
    extract(config, tmp_path / "one", ALONE)
    extract(config, tmp_path / "ray", ALONE, engine="ray")
    one, two = (FeatureBank.open(tmp_path / name) for name in ("one", "ray"))
    assert one.digest == two.digest and one.info == two.info

    with pytest.raises(SystemExit, match="0"):
        main(["learn", "-o", str(tmp_path / "knows")])
    pictures = sorted(map(str, (tmp_path / "pictures").rglob("*.png")))[:20]
    words = ["predict", str(tmp_path / "knows"), *pictures, "--csv", "--top", "2", "-o"]
    for name, more in (("plain.csv", []), ("ray.csv", ["--engine", "ray"])):
        with pytest.raises(SystemExit, match="0"):
            main([*words, str(tmp_path / name), *more])
    whole = (tmp_path / "plain.csv").read_text()
    _check_same(whole, (tmp_path / "ray.csv").read_text())

    parts = []
    for number in (1, 2, 3):
        parts.append(tmp_path / f"part-{number}.csv")
        with pytest.raises(SystemExit, match="0"):
            main([*words, str(parts[-1]), "--shard", f"{number}/3"])
    _check_same(whole, "".join(part.read_text() for part in parts))


def _check_same(one: str, other: str) -> None:
    """The same answers; probabilities to rounding, which differs with the threads of a process."""
    for mine, theirs in zip(csv.reader(one.splitlines()), csv.reader(other.splitlines()), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a == b or float(a) == pytest.approx(float(b), abs=2e-6), (mine, theirs)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_worker_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "versions", lambda: {"wdae": "0.0.1", "torch": "1.0", "numpy": "1.0"})
    with pytest.raises(RunError, match=r"differ in versions: wdae 0\.0\.1 here, .* there"):
        extract(extraction(tmp_path, chunk=40), tmp_path / "bank", ALONE, engine="ray")
    assert not (tmp_path / "bank").exists()


def test_ray_that_is_absent_and_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "ray":
            raise ImportError(name)
        return real(name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(MissingExtraError, match=r"pip install 'wdae\[ray\]'"):
            ray_engine.connect(None)
    if ray.is_initialized():
        ray.shutdown()
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:99999"):
        with pytest.raises(RunError, match=rf"no Ray cluster at {address}: .*; start one with"):
            ray_engine.connect(address)


def test_versions_that_differ_are_named() -> None:
    ray_engine.refuse_other_versions(ray_engine.versions())
    other = ray_engine.versions() | {"torch": "1.13"}
    with pytest.raises(RunError, match=r"differ in versions: torch 1\.13 here, .* there; features would"):
        ray_engine.refuse_other_versions(other)


def test_lists_of_pictures_travel_to_workers_and_pictures_do_not(tmp_path: Path) -> None:
    config = extraction(tmp_path)
    images = open_dataset(config.data)
    sent = ray_engine._sent(images)
    assert sent is not None and isinstance(sent.source, FileSource)
    assert all(path.is_absolute() for path in sent.source.paths)
    where = np.stack([np.zeros(len(images), int), np.arange(len(images))], 1)
    pixels = ArraySource((np.zeros((len(images), 4, 4, 3), np.uint8),), where, ("pictures",))
    assert ray_engine._sent(replace(images, source=pixels)) is None


def test_shard_or_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = extraction(tmp_path)
    words = ["extract", "--data", str(config.data), "--backbone", str(config.backbone)]
    with pytest.raises(SystemExit, match="2"):
        main([*words, "-o", str(tmp_path / "bank"), "--shard", "1/2", "--engine", "ray"])
    assert "give --shard or --engine ray" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "bank", ignore_errors=True)
