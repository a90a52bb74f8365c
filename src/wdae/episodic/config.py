"""The recipe of training on episodes of pictures."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from wdae.config import Config, Field
from wdae.config.augment import AugmentConfig
from wdae.stage1.config import DataConfig, ScheduleConfig

FIXED_WAYS = ("gnn", "maml")
"""Methods whose networks have an output for each class of an episode."""


class EpisodeConfig(Config):
    """The shape of a training episode, and how many make a step."""

    ways: int = Field(5, ge=2)
    """Base classes of an episode; more than in the test help methods that compare."""
    queries: int = Field(15, ge=1)
    """Queries of each class."""
    splits: int = Field(1, ge=1)
    """How often a class's pictures are split into shots and queries, with other shots each time: as many
    episodes, of pictures that the backbone sees once."""
    per_step: int = Field(16, ge=1)
    """Episodes of a step; BatchNorm's statistics in training are those of all its pictures (of maml: of an
    episode's support, and of its queries)."""


class MeasureConfig(Config):
    """Episodes of new classes: which weights are kept, and how good they are."""

    ways: int = Field(5, ge=2)
    """Classes of an episode."""
    queries: int = Field(15, ge=1)
    """Queries of each class."""
    every: int = Field(500, ge=1)
    """Steps between two validations, each with a checkpoint; one more follows the last step."""
    validation_episodes: int = Field(1000, ge=1)
    """Episodes of validation classes, the same each time; the weights of the best validation are kept."""
    episodes: int = Field(10_000, ge=1)
    """Episodes of novel classes, once, at the end."""
    statistics: Literal["running", "episode"] = "running"
    """BatchNorm's, in validation and test: those that training gathered, or those of an episode's pictures,
    shots and queries together, so that queries inform each other."""
    batch: int = Field(32, ge=1)
    """Episodes at a time; affects speed and memory alone."""


class EpisodicRecipe(Config):
    """A backbone and a method, trained together from pictures on episodes of base classes."""

    places: ClassVar[tuple[str, ...]] = ("backbone", "backbone_options")

    method: Literal["matching", "prototypical", "relation", "gnn", "r2d2", "maml"] = "prototypical"
    """What is trained with the backbone."""
    options: dict[str, float | int | bool] = Field({})
    """Options of the method, by name."""
    data: DataConfig
    """The data set."""
    backbone: str = "conv4-64"
    """A registered backbone; maml adapts its weights, and needs one of four convolutions."""
    backbone_options: dict[str, Any] = Field({})
    """Options of that backbone."""
    shots: int = Field(1, ge=1)
    """Support pictures of each class, in training and in the test."""
    episode: EpisodeConfig = EpisodeConfig()
    """Training episodes."""
    steps: int = Field(5000, ge=1)
    """Optimiser steps."""
    learning_rate: float = Field(1e-3, gt=0)
    """Of Adam, at its highest."""
    weight_decay: float = Field(0.0, ge=0)
    """Of AdamW: decoupled from the gradient, on all parameters."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over time."""
    augment: AugmentConfig = AugmentConfig()
    """Random changes to training pictures."""
    measure: MeasureConfig = MeasureConfig()
    """Validation and test."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Arithmetic of the backbone; distances and linear systems are in float32, and so is all of maml but
    patches and maps that are not pooled yet."""
    compile: Literal["auto", "off"] = "auto"
    """auto: on GPUs, torch.compile the backbone's stages in training, and record a step of maml."""
    log_every: int = Field(50, ge=1)
    """Steps between two lines of curves."""
    seed: int = Field(0, ge=0)
    """Seed of everything random."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.method in FIXED_WAYS and self.episode.ways != self.measure.ways:
            raise ValueError(
                f"{self.method} is made for one number of classes, but episode.ways is {self.episode.ways} "
                f"and measure.ways {self.measure.ways}; give both the same"
            )
        shots, splits, pictures = self.shots, self.episode.splits, self.shots + self.episode.queries
        if splits * shots > pictures:
            raise ValueError(
                f"episode.splits is {splits}, but {pictures} pictures of a class (shots and queries)"
                f" have {pictures // shots} sets of shots; give fewer splits or more queries"
            )
        if self.data.stream:
            raise ValueError("data.stream: episodes are drawn from pictures on the device; leave it out")
        return self
