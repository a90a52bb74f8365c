"""The recipe of a comparison: which methods, how long each is trained, on which episodes all are measured."""

from __future__ import annotations

from typing import ClassVar, Literal

from wdae.config import Config, Field


class CompareRecipe(Config):
    """Methods trained and measured on one bank, on the same episodes.

    >>> CompareRecipe(methods=("lwof-attention", "wdae-gnn"), episodes=500).reference
    'initial-estimate'
    """

    places: ClassVar[tuple[str, ...]] = ("bank", "methods", "reference")

    bank: str = "embedded"
    """A feature bank's folder, or embedded: the one that ships with the package."""
    methods: tuple[str, ...] = Field(("all",), min_length=1)
    """Names of methods (see wdae methods), all for every one of them; a name with options of the method or
    keys of its recipe (lda:shrink=0.9, wdae-gnn:training.noise=0.05); run folders of wdae train, measured as
    they are; recipes (a file, or mini-imagenet/wdae-gnn-plus), trained as they stand."""
    reference: str = "initial-estimate"
    """The method that the others' paired differences are taken to."""
    shots: tuple[int, ...] = Field((1, 5), min_length=1)
    """Numbers of shots to measure."""
    ways: int = Field(5, ge=2)
    """Novel classes of an episode."""
    queries: int = Field(15, ge=1)
    """Queries a novel class."""
    episodes: int = Field(2000, ge=1)
    """Test episodes for each number of shots."""
    metric: Literal["novel", "base", "all"] | None = None
    """Insist on an accuracy: methods that cannot give it are refused; null takes what each gives."""
    steps: int = Field(300, ge=1)
    """Training steps of a learned method, for each number of shots (SNAIL takes several times as many)."""
    episodes_per_step: int = Field(8, ge=1)
    """Training episodes in a step."""
    validations: int = Field(6, ge=1)
    """How often, in training, the method is tried on validation classes; the best state is kept."""
    validation_episodes: int = Field(500, ge=1)
    """Validation episodes each time."""
    patience: int | None = Field(None, ge=1)
    """Stop a training after so many validations without a better one; null: never."""
    split_held_out: bool = False
    """Fit ε and balance on one half of the held-out base pictures and test with the other; off: all of them
    for both, so that base queries have been fitted on."""
    seed: int = Field(0, ge=0)
    """Every random choice follows from it."""
    seeds: tuple[int, ...] = ()
    """Several seeds of training, in place of one: all on the test episodes of ``seed``; the table gives the
    mean over them and how far they spread."""
    episode_seed: int | None = Field(None, ge=0)
    """Draws the test episodes; null: they follow from ``seed``."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products in training; auto: bfloat16 where the hardware computes in it."""
