"""Recipes that extend others: what is merged, what is refused, and where faults are."""

from pathlib import Path

import pytest

from wdae.config import Config, Field, load
from wdae.config.inheritance import MAX_FILES
from wdae.errors import RecipeError


class Training(Config):
    noise: float = Field(0.1, ge=0)
    shots: tuple[int, ...] = (1, 5)
    steps: dict[int, float] | None = None


class Recipe(Config):
    training: Training = Training()
    name: str = "x"
    seed: int = 0


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def refused(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        load(Recipe, path)
    return str(caught.value)


def test_groups_merge_and_lists_and_values_are_replaced(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        leaf="extends: middle.yaml\nname: leaf\ntraining: {shots: [2]}\n",
        middle="extends: root.yaml\ntraining:\n  noise: 0.3\n",
        root="name: root\nseed: 7\ntraining: {noise: 0.2, shots: [1, 2, 3], steps: {1: 0.5}}\n",
    )
    recipe = load(Recipe, path, {"training.noise": 0.4})
    assert recipe == Recipe(name="leaf", seed=7, training=Training(noise=0.4, shots=(2,), steps={1: 0.5}))
    assert load(Recipe, path).training.noise == 0.3


def test_a_null_takes_a_group_away(tmp_path: Path) -> None:
    path = write(
        tmp_path, leaf="extends: root.yaml\ntraining: {steps: null}\n", root="training: {steps: {1: 0.5}}\n"
    )
    assert load(Recipe, path).training.steps is None


def test_the_name_is_relative_to_the_file_that_gives_it(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", middle="extends: root.yaml\n", root="seed: 3\n")
    write(tmp_path, root="seed: 4\n")
    assert load(Recipe, write(tmp_path, leaf="extends: parts/middle.yaml\n")).seed == 3


def test_every_fault_names_its_file_and_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        leaf="extends: root.yaml\nsede: 3\n",
        root="name: r\nname: r\ntraining:\n  noise: -1\n  shots: x\n",
    )
    assert refused(path).splitlines() == [
        f"{path} has 4 faults:",
        "  root.yaml line 2: key 'name' is given twice (first on line 1)",
        "  root.yaml line 4: 'training.noise' must be at least 0, got -1",
        "  root.yaml line 5: 'training.shots' must be a list of whole numbers, got 'x' (text) (at 0)",
        "  line 2: unknown key 'sede'; did you mean 'seed'?",
    ]


def test_a_circle_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, a="extends: b.yaml\n", b="seed: 1\nextends: a.yaml\n")
    assert refused(path) == "b.yaml line 2: recipes extend each other in a circle: a.yaml → b.yaml → a.yaml"
    assert "circle" in refused(write(tmp_path, a="extends: a.yaml\n"))


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    for n in range(MAX_FILES + 1):
        write(tmp_path, **{f"r{n}": f"extends: r{n + 1}.yaml\n"})
    write(tmp_path, **{f"r{MAX_FILES}": "seed: 5\n"})
    assert load(Recipe, tmp_path / "r1.yaml").seed == 5
    assert f"may have {MAX_FILES} files" in refused(tmp_path / "r0.yaml")


@pytest.mark.parametrize("name", ["../outside.yaml", "{root}/outside.yaml", "link.yaml"])
def test_files_outside_the_folder_are_not_read(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "recipes"
    inside.mkdir()
    write(tmp_path, outside="seed: secret\n")
    (inside / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    message = refused(write(inside, leaf=f"extends: {name.format(root=tmp_path)}\n"))
    assert "leaf.yaml line 1: 'extends' may name recipes in" in message
    assert "secret" not in message


@pytest.mark.parametrize("value", ["3", "null", "[a.yaml]", "{}", "''", '"a\\0b"', '"\\ud800"', "a" * 300])
def test_extends_is_the_name_of_a_file(tmp_path: Path, value: str) -> None:
    assert "'extends' must be the name of a recipe file" in refused(
        write(tmp_path, leaf=f"extends: {value}\n")
    )


def test_a_misspelt_name_gets_a_hint(tmp_path: Path) -> None:
    path = write(tmp_path, leaf="extends: wdae-gn.yaml\n")
    write(tmp_path, **{"wdae-gnn": "seed: 1\n"})
    assert (
        refused(path) == f"{path} line 1: no recipe 'wdae-gn.yaml' to extend; did you mean 'wdae-gnn.yaml'?"
    )
