"""Recipes that people get wrong: every fault is named, at once, with its line."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import model_validator

from wdae.comparison.config import CompareRecipe
from wdae.config import Config, Field, describe, load
from wdae.config.recipe import places
from wdae.errors import RecipeError
from wdae.extract.config import ExtractConfig
from wdae.reproduce.config import ReproduceRecipe
from wdae.stage1.config import Stage1Config
from wdae.stage2.config import MetaRecipe


class Training(Config):
    noise: float = Field(0.1, ge=0)
    hidden: int = Field(320, ge=1)
    kind: Literal["gnn", "mlp"] = "gnn"
    shots: tuple[int, ...] = Field((1, 5), min_length=1)
    first: int = 1
    last: int = 2

    @model_validator(mode="after")
    def _ordered(self) -> "Training":
        if self.first > self.last:
            raise ValueError(f"first ({self.first}) must not be after last ({self.last})")
        return self


class Recipe(Config):
    training: Training = Training()
    seed: int = 0


class Needy(Config):
    class Data(Config):
        path: Path
        """Where the pictures are."""

    data: Data


def faults(tmp_path: Path, text: str, **overrides: object) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load(Recipe, path, {key.replace("__", "."): value for key, value in overrides.items()})
    return str(caught.value)


def test_all_faults_at_once_with_lines_and_nearest_names(tmp_path: Path) -> None:
    text = "training:\n  nosie: 0.1\n  hidden: many\n  kind: gmn\n  noise: -1\nsede: 3\n"
    message = faults(tmp_path, text, training__shots=[])
    assert message.splitlines()[0] == f"{tmp_path / 'recipe.yaml'} has 6 faults:"
    assert set(message.splitlines()[1:]) == {
        "  line 2: unknown key 'training.nosie'; did you mean 'training.noise'?",
        "  line 3: 'training.hidden' must be a whole number ≥ 1, got 'many' (text)",
        "  line 4: 'training.kind' must be one of gnn, mlp; got 'gmn'; did you mean 'gnn'?",
        "  line 5: 'training.noise' must be at least 0, got -1",
        "  line 6: unknown key 'sede'; did you mean 'seed'?",
        "  'training.shots' must have at least 1 elements, got []",
    }


def test_a_key_in_the_wrong_group_is_found_in_the_right_one(tmp_path: Path) -> None:
    assert "did you mean 'training.noise'?" in faults(tmp_path, "noise: 0.2\n")


def test_a_name_like_none_lists_the_known_ones(tmp_path: Path) -> None:
    assert "known: seed, training" in faults(tmp_path, "zzz: 0.2\n")


def test_yaml_that_does_not_parse_names_the_line(tmp_path: Path) -> None:
    message = faults(tmp_path, "training:\n  noise: [1, 2\nseed: 3\n")
    assert "line 3" in message
    assert "not valid YAML" in message


def test_a_key_given_twice(tmp_path: Path) -> None:
    message = faults(tmp_path, "seed: 1\ntraining: {}\nseed: 2\n")
    assert "line 3: key 'seed' is given twice (first on line 1)" in message


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "3\n"])
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str) -> None:
    assert "a recipe is a list of 'key: value' lines" in faults(tmp_path, text)


def test_unsafe_tags_are_not_followed(tmp_path: Path) -> None:
    message = faults(tmp_path, "seed: !!python/object/apply:os.getcwd []\n")
    assert "not valid YAML" in message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe at .*absent\.yaml"):
        load(Recipe, tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load(Recipe, tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"seed: \xff\xfe\n")
    with pytest.raises(RecipeError, match="UTF-8"):
        load(Recipe, path)
    path.write_bytes(b"seed: \x00\n")
    with pytest.raises(RecipeError, match="not valid YAML"):
        load(Recipe, path)


def test_a_missing_key_is_named_itself_not_its_group() -> None:
    with pytest.raises(RecipeError, match=r"'data.path' must be given \(a path\): Where the pictures are\."):
        load(Needy, None)


def test_a_rule_between_keys(tmp_path: Path) -> None:
    assert "first (5) must not be after last (2)" in faults(tmp_path, "training:\n  first: 5\n")


def test_an_override_below_a_single_value(tmp_path: Path) -> None:
    message = faults(tmp_path, "seed: 3\n", seed__x=1)
    assert "'seed.x' cannot be set: 'seed' is a single value" in message


def test_an_element_of_a_list_is_placed(tmp_path: Path) -> None:
    message = faults(tmp_path, "training:\n  shots: [1, five]\n")
    assert "line 2: 'training.shots' must be a list of whole numbers, got 'five' (text) (at 1)" in message


OUTSIDE = ["/etc", "../elsewhere", "a/../../b", '"a\\0b"']


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_recipe_names_places_below_the_working_folder_only(tmp_path: Path, path: str) -> None:
    file = tmp_path / "recipe.yaml"
    for cls, text, named in (
        (Stage1Config, f"data: {{path: {path}}}\n", {"data.path": path}),
        (Stage1Config, f"data: {{path: d}}\ndistillation: {{teachers: [a, {path}]}}\n", None),
        (Stage1Config, f"data: {{path: d, cache_dir: {path}}}\n", None),
        (Stage1Config, f"data: {{path: d}}\nstart: {path}\n", {"start": path}),
        (ExtractConfig, f"data: d\nmodel: {path}\n", {"backbone": path}),
        (CompareRecipe, f"bank: {path}\n", {"bank": path}),
        (ReproduceRecipe, f"held_out_bank: {path}\n", {"held_out_bank": path}),
        (ReproduceRecipe, f"stage1: ['epochs=2', 'distillation.teachers=[a, {path}]']\n", None),
    ):
        file.write_text(text)
        with pytest.raises(RecipeError, match=r"below the working folder only.* name it on the call: --"):
            load(cls, file)
        load(cls, file, outside=True)
        if named is not None:
            load(cls, file, named)
        file.write_text(text.replace(path, "below/it"))
        load(cls, file)


def test_every_key_of_text_is_a_place_or_known_to_be_none() -> None:
    """A new key that is opened as a file must be among ``places``, or a stranger's recipe chooses it."""
    none = {"name", "method", "options", "methods", "reference", "device", "rows", "stage2", "layout"}
    for cls in (CompareRecipe, ExtractConfig, MetaRecipe, ReproduceRecipe, Stage1Config):
        known = {".".join(key) for key in places(cls)}
        text = {key.name for key in describe(cls) if "text" in key.type or "path" in key.type}
        assert {name for name in text - known if name.rpartition(".")[2] not in none} == set(), cls
