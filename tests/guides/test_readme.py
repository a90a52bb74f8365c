"""Every command of the README and of the quick start, run as a reader would; long ones are made short."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_trees import folders
from pages import DOCS, blocks, commands, run_command

import wdae

ROOT = DOCS.parent
SMALL = ["--denoiser.hidden", "8", "--training.steps", "2", "--training.episodes-per-step", "4"]
SMALL += ["--training.n-fake", "5", "--training.base-queries", "8", "--training.validate-every", "2"]
SMALL += ["--training.validation-episodes", "10", "--evaluation.episodes", "10", "--evaluation.queries", "5"]
SMALL += ["--evaluation.step-episodes", "10", "--space.choice-episodes", "10", "--device", "cpu"]
MORE = {
    "train": SMALL,
    "evaluate": ["--episodes", "10", "--queries", "5", "--device", "cpu"],
    "compare": [
        "--episodes",
        "10",
        "--queries",
        "5",
        "--steps",
        "2",
        "--validation-episodes",
        "5",
        "--device",
        "cpu",
    ],
}
# What needs a data set runs in full on drawn ones there.
ELSEWHERE = {
    "pretrain": "tests/end_to_end/test_whole_chain.py",
    "extract": "tests/end_to_end/test_whole_chain.py",
    "episodic": "tests/episodic/test_episodic.py",
    "reproduce": "tests/reproduce/test_reproduce_from_pictures.py",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the photos and features that the pages speak of."""
    folders(tmp_path / "drawn", ["n1", "n2"], 5, seed=0)
    for name, drawn in (("okapi", "n1"), ("new", "n2")):
        (tmp_path / name).mkdir()
        for i, file in enumerate(sorted((tmp_path / "drawn" / drawn).iterdir())):
            shutil.copy(file, tmp_path / name / f"{i}.jpg")
    shutil.copytree(tmp_path / "okapi", tmp_path / "labelled" / "okapi")
    bank = wdae.synthetic_bank(24, 6, 6, 24, 16, seed=0, held_out_per_class=8)
    parts = np.array([part.value for part in wdae.Part])[bank.parts.numpy()]
    np.savez(
        tmp_path / "features.npz",
        features=bank.features.numpy(),
        labels=np.array(bank.class_names)[bank.labels.numpy()],
        parts=parts,
    )
    shutil.copytree(tmp_path / "drawn", tmp_path / "DIR")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=["README", "index"])
def test_every_command_runs(page: Path, place: Path) -> None:
    shown = [words for language, code, _ in blocks(page) if language == "sh" for words in commands(code)]
    assert len(shown) >= 3
    for words in shown:
        if words[1] in ELSEWHERE:
            assert f'"{words[1]}"' in (ROOT / ELSEWHERE[words[1]]).read_text()
            continue
        wide = [w for word in words for w in (sorted(map(str, place.glob(word))) if "*" in word else [word])]
        run_command(wide, MORE.get(words[1], ()))


def test_the_quick_start_in_python() -> None:
    ((_, code, _),) = (block for block in blocks(DOCS / "index.md") if block[0] == "python")
    exec(compile(code, "index.md", "exec"), {})
