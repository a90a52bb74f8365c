"""The recipe of a reproduction: where features come from, which rows, on how many episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from wdae.config import Config, Field
from wdae.extract.config import Sides

ROLES = ("", "held_out_", "trainval_")


class ReproduceRecipe(Config):
    """What ``wdae reproduce`` works from, and how much it measures."""

    former: ClassVar[Mapping[str, str]] = {f"{role}model": f"{role}backbone" for role in ROLES}
    places: ClassVar[tuple[str, ...]] = ("stage1", "stage1_recipe")

    data: Path | None = None
    """The benchmark's pictures; stage 1 is trained on them for every role without a bank or backbone."""
    bank: Path | None = None
    """Features of a backbone that was trained on every picture of the base classes."""
    held_out_bank: Path | None = None
    """Features of a backbone that saw only some pictures of each base class, for base and all accuracy."""
    trainval_bank: Path | None = None
    """Features of a backbone that was trained on base and validation classes."""
    backbone: Path | None = None
    """Instead of a bank: the backbone to extract it with, a folder of wdae pretrain or ``embedded``, which
    ships with the package; needs the data."""
    held_out_backbone: Path | None = None
    """The same for the bank with held-out pictures."""
    trainval_backbone: Path | None = None
    """The same for the bank of base and validation classes."""
    rows: tuple[str, ...] = Field(("all",), min_length=1)
    """Rows to run, by the names of their recipes; all: the paper's own and ours; rivals: the systems of
    others that its table quotes, on the same features. The initial estimate is always among them."""
    shots: tuple[int, ...] | None = None
    """Numbers of shots of the tables; those of the paper by default."""
    episodes: int | None = Field(None, ge=1)
    """Test episodes for each number of shots; the paper's 20,000 (few-way) or 100 (all-way) by default."""
    ways: int = Field(5, ge=2)
    """Novel classes of an episode (few-way)."""
    queries: int = Field(15, ge=1)
    """Queries a novel class (few-way)."""
    curve_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of shots of the plots."""
    curve_episodes: int = Field(5000, ge=1)
    """Episodes of the plots, where a table does not ask for more (at most those of the tables)."""
    held_out: int = Field(100, ge=1)
    """Pictures of each base class held out, where stage 1 is trained here for base and all accuracy."""
    stage1: tuple[str, ...] = ()
    """Keys of the stage-1 recipe to change: ``epochs=2 data.size=32``."""
    stage2: tuple[str, ...] = ()
    """Keys to change in the recipe of every row: ``training.steps=100``."""
    stage1_recipe: str | None = None
    """Another recipe of stage 1: a file, or the name of one of the benchmark's."""
    quick: bool = False
    """The paper's plain way: one training of stage 1 for each table, features of single pictures. Without,
    MiniImageNet's pictures train the one network that gives our best features."""
    flip_average: bool = False
    """Extract means over each picture and its mirror image (the paper does not)."""
    sizes: Sides = ()
    """Extract means over each picture at these sides (the paper: one, the model's own, as by default)."""
    crops: int = Field(0, ge=0)
    """Extract means that take in this many random crops of each picture too (the paper: none)."""
    reading: Literal["names", "positions"] = "names"
    """Of ImageNet-FS's split: by its class names, or by positions in the sorted list (the authors' code)."""
    allow_missing: bool = False
    """Take pictures with classes of the benchmark missing; the figures are then not the benchmark's."""
    split_held_out: bool | None = None
    """Fit ε and balance on one half of the held-out base pictures and test with the other; off: all of them
    for both. By default as the benchmark has it: MiniImageNet yes; the others fit nothing on them."""
    seed: int = Field(0, ge=0)
    """Every random choice follows from it."""
    seeds: tuple[int, ...] = ()
    """Several seeds of stage 2, in place of one, on the same features and test episodes (those of ``seed``):
    each has a folder of its own, and ``seeds.md`` gives the mean over them and how far they spread."""
    episode_seed: int | None = Field(None, ge=0)
    """Draws the test episodes; null: they follow from ``seed``. Give it to compare several seeds of training
    on the same episodes."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products; auto: bfloat16 where the hardware computes in it."""
