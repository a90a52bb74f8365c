"""Run folders: nothing that is there is lost, and every refusal says what to do."""

from pathlib import Path

import pytest

import wdae.runs.run
from wdae.config import Config
from wdae.errors import RunError, StorageError
from wdae.runs.run import Run


class Recipe(Config):
    noise: float = 0.1


def test_an_existing_run_is_refused_and_stays(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Recipe(noise=0.5)).log(step=1)
    with pytest.raises(RunError, match=r"run holds a run already; .*-o.*--resume.*--force"):
        Run.create(tmp_path / "run", Recipe())
    assert Run.open(tmp_path / "run").recipe(Recipe).noise == 0.5
    assert Run.open(tmp_path / "run").metrics() == [{"step": 1}]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_or_file_that_is_no_run_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_bytes(b"file")
    for name in ("photos", "file"):
        with pytest.raises(RunError, match="holds no run, so it is left alone"):
            Run.create(tmp_path / name, Recipe(), force=force)
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"
    assert (tmp_path / "file").read_bytes() == b"file"


def test_the_old_run_comes_back_if_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.create(tmp_path / "run", Recipe(noise=0.5)).log(step=1)

    def full(path: Path, value: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(wdae.runs.run, "write_json", full)
    with pytest.raises(StorageError, match="disk is full"):
        Run.create(tmp_path / "run", Recipe(), force=True)
    assert Run.open(tmp_path / "run").metrics() == [{"step": 1}]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(wdae.runs.run, "write_json", full)
    with pytest.raises(StorageError, match="disk is full"):
        Run.create(tmp_path / "run", Recipe())
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist; give the folder"):
        Run.resume(tmp_path / "absent")


def test_metrics_altered_in_the_middle(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe())
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(StorageError, match=r"metrics\.jsonl line 2 is truncated or altered"):
        run.metrics()
