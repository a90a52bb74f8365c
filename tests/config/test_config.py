from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wdae.config import Config, Field, describe, dump, load
from wdae.config import text as recipe_text
from wdae.errors import RecipeError


class Kind(StrEnum):
    GNN = "gnn"
    MLP = "mlp"


class Training(Config):
    noise: float = Field(0.1, ge=0, lt=10)
    """Standard deviation of
    the ``noise``."""
    steps: int = Field(100, gt=0)
    clip: float | None = None
    flag: bool = False
    kind: Kind = Kind.GNN
    schedule: Literal["step", "cosine"] = "step"
    layers: int | tuple[int, ...] = 2
    name: str = "x"


class Evaluation(Config):
    shots: tuple[int, ...] = (1, 5)
    epsilon: dict[int, float] = Field({1: 0.3})
    folder: Path = Path("here")


class Recipe(Config):
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    extra: Evaluation | None = None
    seed: int = 0


class Needy(Config):
    class Data(Config):
        path: Path
        """Where the pictures are."""

    data: Data


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_defaults_file_and_overrides_win_in_this_order(tmp_path: Path) -> None:
    path = written(
        tmp_path, "# wdae train --recipe recipe.yaml\ntraining:\n  noise: 1e-3\n  steps: 7\nseed: 3\n"
    )
    recipe = load(Recipe, path, {"training.steps": 9, "evaluation.shots": [2]})
    assert recipe.training == Training(noise=0.001, steps=9)
    assert recipe.evaluation.shots == (2,)
    assert recipe.seed == 3
    assert load(Recipe, None, {}) == Recipe()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "training:\n"])
def test_empty_files_and_groups_are_defaults_or_a_clear_fault(tmp_path: Path, text: str) -> None:
    if text.startswith("training"):
        with pytest.raises(RecipeError, match="'training' must be a group of keys, got None"):
            load(Recipe, written(tmp_path, text))
    else:
        assert load(Recipe, written(tmp_path, text)) == Recipe()


def test_conversions_that_lose_nothing(tmp_path: Path) -> None:
    text = (
        "training: {steps: 1e4, noise: 1, kind: mlp, layers: [3, 4]}\nevaluation: {shots: 5, folder: a/b}\n"
    )
    recipe = load(Recipe, written(tmp_path, text))
    assert recipe.training == Training(steps=10_000, noise=1.0, kind=Kind.MLP, layers=(3, 4))
    assert recipe.evaluation == Evaluation(shots=(5,), folder=Path("a/b"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.steps", "7"),
        ("training.steps", 1.5),
        ("training.steps", True),
        ("training.noise", "0.1"),
        ("training.noise", False),
        ("training.flag", 1),
        ("training.flag", "true"),
        ("training.name", 3),
        ("evaluation.shots", ["1"]),
        ("evaluation.shots", {"a": 1}),
    ],
)
def test_conversions_that_guess_are_refused(key: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=f"'{key}' must be .*, got"):
        load(Recipe, None, {key: value})


def test_overrides_reach_absent_groups_and_single_entries_of_tables() -> None:
    recipe = load(Recipe, None, {"extra.shots": [3], "evaluation.epsilon.5": 0.4})
    assert recipe.extra == Evaluation(shots=(3,))
    assert recipe.evaluation.epsilon == {1: 0.3, 5: 0.4}


def test_overrides_stay_as_the_caller_has_them() -> None:
    """Also a group that another override goes into, and values that are converted."""
    group = {"noise": 0.2, "steps": 1e2}
    recipe = load(Recipe, None, {"training": group, "training.noise": 0.5})
    assert (recipe.training.noise, recipe.training.steps) == (0.5, 100)
    assert group == {"noise": 0.2, "steps": 1e2} and isinstance(group["steps"], float)


def test_dump_is_read_back_equal_and_plainly_written(tmp_path: Path) -> None:
    recipe = Recipe(
        training=Training(name="1e-3", noise=1e-5, layers=(1, 2), kind=Kind.MLP),
        evaluation=Evaluation(epsilon={1: 0.5, 5: float("inf")}, folder=Path("no")),
    )
    text = dump(recipe)
    assert load(Recipe, written(tmp_path, text)) == recipe
    assert "  epsilon:\n    1: 0.5\n" in text
    assert "layers: [1, 2]" in text
    assert "!!" not in text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.floats(0, 9, width=32))
def test_any_text_and_number_survives_dump(name: str, noise: float) -> None:
    recipe = Recipe(training=Training(name=name, noise=noise))
    assert recipe_text.parse(dump(recipe), "dumped").data["training"]["name"] == name
    assert recipe_text.parse(dump(recipe), "dumped").data["training"]["noise"] == noise


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("0", 0),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("null", None),
        ("~", None),
        ("True", True),
        ("[1, 5]", [1, 5]),
        (".inf", float("inf")),
        ("{unclosed", "{unclosed"),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_values_mean_what_people_mean(text: str, value: Any) -> None:
    assert recipe_text.scalar(text) == value
    assert type(recipe_text.scalar(text)) is type(value)


def test_recipes_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe().seed = 4  # type: ignore[misc]


def test_describe_lists_every_key_with_its_words() -> None:
    keys = {key.name: key for key in describe(Recipe)}
    assert list(keys)[:2] == ["training.noise", "training.steps"]
    assert "extra.shots" in keys
    noise = keys["training.noise"]
    assert (noise.type, noise.default_text) == ("a number ≥ 0 and < 10", "0.1")
    assert noise.description == "Standard deviation of the ``noise``."
    assert keys["training.kind"].type == "'gnn' | 'mlp'"
    assert keys["training.clip"].type == "a number or null"
    assert keys["evaluation.shots"].type == "a list of whole numbers"
    assert keys["evaluation.epsilon"].type == "a group of numbers by whole number"
    assert [key.required for key in describe(Needy)] == [True]


def test_dump_is_plain_yaml_for_other_readers() -> None:
    assert yaml.safe_load(dump(Recipe()))["training"]["noise"] == 0.1


def test_former_names_of_keys_are_understood(tmp_path: Path) -> None:
    class Renamed(Config):
        former = {"model": "backbone"}  # noqa: RUF012
        backbone: str = "none"
        seed: int = 0

    assert load(Renamed, written(tmp_path, "model: a\n")).backbone == "a"
    assert load(Renamed, None, {"model": "b"}).backbone == "b"
    with pytest.raises(RecipeError, match="line 2: 'backbone' must be text"):
        load(Renamed, written(tmp_path, "seed: 1\nmodel: 3\n"))
