import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wdae.config import Config
from wdae.errors import RunError
from wdae.runs.environment import commit
from wdae.runs.run import Run


class Recipe(Config):
    noise: float = 0.1
    seed: int = 7


def test_a_new_run_holds_recipe_and_environment(tmp_path: Path) -> None:
    run = Run.create(
        tmp_path / "deep" / "run", Recipe(noise=0.2), command=["/usr/bin/wdae", "train", "-o", "x"]
    )
    assert run.recipe(Recipe) == Recipe(noise=0.2)
    record = run.environment()
    assert record["seed"] == 7
    assert record["command"] == ["wdae", "train", "-o", "x"]
    assert {"wdae", "python", "torch", "numpy", "commit", "platform", "cpu", "gpu", "started"} <= set(record)
    assert run.metrics() == []
    assert sorted(p.name for p in run.path.iterdir()) == [
        "environment.json",
        "metrics.jsonl",
        "plots",
        "recipe.yaml",
        "results",
    ]


def test_an_explicit_seed_is_recorded(tmp_path: Path) -> None:
    assert Run.create(tmp_path / "run", Recipe(), seed=11).environment()["seed"] == 11


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert Run.create(tmp_path / "run", Recipe()).recipe(Recipe) == Recipe()


def test_metrics_are_valid_json_lines_whatever_the_numbers(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe())
    run.log(step=1, loss=0.5, accuracy=np.float32(0.25), per_class=np.array([1.0, math.nan]))
    run.log(step=2, loss=math.inf, note="ö")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"step": 1, "loss": 0.5, "accuracy": 0.25, "per_class": [1.0, None]},
        {"step": 2, "loss": None, "note": "ö"},
    ]
    assert run.metrics()[1]["step"] == 2


def test_resume_drops_a_half_line_and_goes_on(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe())
    run.log(step=1)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.metrics() == [{"step": 1}]
    again = Run.resume(run.path, command=["wdae", "train", "--resume"])
    again.log(step=2)
    assert again.metrics() == [{"step": 1}, {"step": 2}]
    assert again.environment()["resumed"][0]["command"] == ["wdae", "train", "--resume"]


@pytest.mark.parametrize(("step", "kept"), [(0, [None]), (2, [None, 1, 2]), (9, [None, 1, 2, 3, None, 4])])
def test_truncate_drops_what_came_after_the_checkpoint(
    tmp_path: Path, step: int, kept: list[int | None]
) -> None:
    run = Run.create(tmp_path / "run", Recipe())
    run.log(note="no step yet")
    for i in (1, 2, 3):
        run.log(step=i)
    run.log(note="validated at 3")
    run.log(step=4)
    run.truncate_metrics(step)
    assert [row.get("step") for row in run.metrics()] == kept


def test_force_replaces_a_run_whole(tmp_path: Path) -> None:
    old = Run.create(tmp_path / "run", Recipe(noise=0.5))
    (old.path / "model.safetensors").write_bytes(b"old")
    new = Run.create(tmp_path / "run", Recipe(noise=0.6), force=True)
    assert new.recipe(Recipe).noise == 0.6
    assert not (new.path / "model.safetensors").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_open_reads_and_refuses_what_is_no_run(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Recipe())
    assert Run.open(tmp_path / "run").recipe(Recipe) == Recipe()
    with pytest.raises(RunError, match="does not exist"):
        Run.open(tmp_path / "absent")
    with pytest.raises(RunError, match="holds no run"):
        Run.open(tmp_path)


def test_the_commit_is_only_that_of_our_own_checkout(tmp_path: Path) -> None:
    """A package inside somebody else's checkout must not claim that checkout's commit."""
    package = tmp_path / "theirs" / "lib" / "wdae"
    (package / "runs").mkdir(parents=True)
    source = Path(sys.modules["wdae"].__file__ or "").parent
    for name in ("__init__.py", "runs/__init__.py"):
        (package / name).write_text("")
    for name in ("runs/environment.py", "version.py"):
        (package / name).write_text((source / name).read_text())
    git = ["git", "-C", str(tmp_path / "theirs"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    code = "from wdae.runs.environment import commit; print(commit())"

    def asked() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=package.parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert asked() == "None"
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "now it is ours"], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert asked() == head
    (package / "version.py").write_text("__version__ = 'changed'\n")
    assert asked() == head + "+"


def test_commit_never_raises() -> None:
    assert commit() is None or len(commit() or "") in (40, 41)
