"""Every recipe file is valid, says which command runs it, and resolves to what it always did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wdae.comparison.config import CompareRecipe
from wdae.config import Config, dump, load
from wdae.episodic.config import EpisodicRecipe
from wdae.episodic.learners import build_learner
from wdae.stage1.config import Stage1Config
from wdae.stage2.config import MetaRecipe

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes").rglob("*.yaml"))
RESOLVED = json.loads((ROOT / "tests" / "fixtures" / "resolved-recipes.json").read_text())
# Keys that are newer than these resolved recipes, with the defaults that leave everything as it was.
NEWER = (
    "  held_out_seed: null\n",
    "  cycles: 1\n",
    "  peak: 1.0\n",
    "  shrink: 1.0\n",
    "  anchors: 0\n",
    "  prior: 0.3\n",
    "  anchor_share: 0.1\n",
    "  intercepts: false\n",
    "  fewest_shots: 10\n",
    "  split_held_out: false\n",
    "  episode_seed: null\n",
    "seeds: []\n",
    "episode_seed: null\n",
    "  groups: 1\n",
    "\npatience: null",
)
EPISODIC = [f for f in FILES if f.name.startswith("conv4-") and f.name != "conv4-lwof.yaml"]
META = [
    f for f in FILES if f.parent.name != "compare" and not f.name.startswith("stage1-") and f not in EPISODIC
]


def test_there_are_recipes() -> None:
    assert len(META) >= 12
    assert any(f.name.startswith("stage1-") for f in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_a_recipe_opens_with_its_command(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith("# wdae ")
    assert str(file.relative_to(ROOT)) in first


def test_no_recipe_was_lost() -> None:
    assert RESOLVED.keys() <= {f.relative_to(ROOT / "recipes").as_posix() for f in FILES}


@pytest.mark.parametrize("name", RESOLVED)
def test_a_recipe_resolves_byte_for_byte_to_what_it_was(name: str) -> None:
    kind: type[Config] = Stage1Config if "/stage1-" in name else MetaRecipe
    if name.startswith("compare/"):
        kind = CompareRecipe
    now = dump(load(kind, ROOT / "recipes" / name))
    for line in NEWER:
        now = now.replace(line, "", 1)
    assert now == RESOLVED[name]


@pytest.mark.parametrize("file", META, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_a_stage_2_recipe_is_valid_and_named_like_its_file(file: Path) -> None:
    recipe = load(MetaRecipe, file)
    assert recipe.name.replace("+", "-plus") == file.stem


@pytest.mark.parametrize("file", [f for f in FILES if f.name.startswith("stage1-")], ids=lambda f: f.stem)
def test_a_stage_1_recipe_is_valid(file: Path) -> None:
    assert load(Stage1Config, file).epochs >= 1


@pytest.mark.parametrize("file", EPISODIC, ids=lambda f: f.stem)
def test_a_recipe_from_pictures_is_valid_and_builds_what_it_names(file: Path) -> None:
    recipe = load(EpisodicRecipe, file)
    assert file.stem.removesuffix(f"-{recipe.shots}-shots").endswith(recipe.method)
    assert sum(p.numel() for p in build_learner(recipe).parameters()) > 30_000


@pytest.mark.parametrize(("name", "dim"), [("conv4-r2d2", 8_000), ("conv4-512-r2d2", 51_200)])
def test_r2d2_joins_the_maps_of_its_last_two_blocks(name: str, dim: int) -> None:
    file = ROOT / "recipes" / "mini-imagenet" / f"{name}.yaml"
    head = build_learner(load(EpisodicRecipe, file)).head
    assert head.dim == dim
    assert f"{dim:,} features" in file.read_text()


def test_the_ablations_differ_from_the_paper_model_in_one_thing_each() -> None:
    for benchmark, kind in (("mini-imagenet", "gnn"), ("mini-imagenet", "mlp"), ("imagenet-fs", "gnn")):
        folder = ROOT / "recipes" / benchmark
        whole = load(MetaRecipe, folder / f"wdae-{kind}.yaml")
        for name, key in (
            ("no-noise", "noise"),
            ("noisy-targets", "noisy_targets"),
            ("no-cls-loss", "classification_loss"),
            ("no-rec-loss", "reconstruction_loss"),
        ):
            other = load(MetaRecipe, folder / f"wdae-{kind}-{name}.yaml")
            assert other.denoiser == whole.denoiser
            assert other.evaluation == whole.evaluation
            a, b = whole.training.model_dump(), other.training.model_dump()
            assert {k for k in a if a[k] != b[k]} == {key}
