"""The recipe of stage 2: which denoiser, how it is trained, how it is evaluated."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from wdae.config import Config, Field
from wdae.evaluation.config import EvaluationConfig


class DenoiserConfig(Config):
    """The network r(·) and the class graph it works on."""

    kind: Literal["gnn", "mlp"] = "gnn"
    """gnn: classes exchange messages with their neighbours; mlp: each class alone."""
    hidden: int = Field(320, ge=1)
    """Size H of messages and hidden states."""
    layers: int = Field(2, ge=1)
    """Number of layers, the last included."""
    dropout: float = Field(0.95, ge=0, lt=1)
    """Share of message components and hidden units dropped in training."""
    neighbours: int = Field(10, ge=1)
    """Neighbours J of a class in the graph."""
    inverse_temperature: float = Field(5.0, gt=0)
    """Of the softmax that turns a class's similarities into edge strengths."""


class SpaceConfig(Config):
    """The space that features and weights are compared in; as given here, the features as they are."""

    power: float | None = Field(1.0, gt=0, le=2)
    """Exponent p of sign(z)·|z|^p; null: chosen on validation classes."""
    centre: float | None = Field(0.0, ge=0, le=1)
    """How much of the base images' mean is taken off; null: chosen on validation classes."""
    shrink: float | None = Field(1.0, gt=0, le=1)
    """Share of a round covariance in that of whitening, which damps the directions in which images of one
    class differ; 1: no whitening; null: chosen on validation classes."""
    refit_steps: int = Field(0, ge=0)
    """Steps in which base weights are learned again, from class means; 0: as the bank has them, or class
    means where power, centre or shrink change the space."""
    choice_episodes: int = Field(500, ge=1)
    """Validation episodes on which power, centre and shrink are chosen, for 1 shot and for 5."""


class TrainingConfig(Config):
    """Episodes, losses, noise and optimiser."""

    n_fake: int = Field(20, ge=1)
    """Base classes that play novel in an episode."""
    shots: tuple[int, ...] = Field((1,), min_length=1)
    """Shots of a fake novel class; several numbers: one of them at random for each episode."""
    unequal_shots: bool = False
    """With several numbers of shots, each class of an episode gets its own."""
    queries_per_novel: int = Field(5, ge=1)
    """Query images of each fake novel class."""
    base_queries: int = Field(100, ge=0)
    """Query images of base classes in an episode; methods that score novel classes only draw none."""
    noise: float = Field(0.1, ge=0)
    """Deviation σ of the noise on the initial estimates; 0 is the ablation 'no noise'."""
    noisy_targets: bool = False
    """Ablation: fake novel classes enter as their learned weights plus noise, not as means of shots."""
    classification_loss: bool = True
    """Off is the ablation 'no classification loss'."""
    reconstruction_loss: bool = True
    """Off is the ablation 'no reconstruction loss'."""
    steps: int = Field(2000, ge=1)
    """Optimiser steps."""
    episodes_per_step: int = Field(8, ge=1)
    """Episodes in a step."""
    groups: int = Field(1, ge=1)
    """Groups that a step's episodes are split into, each with BatchNorm statistics of its own; the processes
    of torchrun share them out, and any number of processes comes to the same result."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """sgd with Nesterov momentum, or adam (AdamW)."""
    learning_rate: float = Field(0.01, gt=0)
    """At the beginning."""
    schedule: Literal["step", "cosine", "constant"] = "step"
    """How the learning rate falls."""
    milestones: tuple[float, ...] = (0.667,)
    """Where it drops (schedule 'step'), as shares of all steps."""
    decay: float = Field(0.1, gt=0, le=1)
    """By how much it drops there."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum."""
    weight_decay: float = Field(5e-4, ge=0)
    """On all parameters."""
    validate_every: int = Field(200, ge=1)
    """Steps between validations, each of which also keeps a checkpoint."""
    validation_episodes: int = Field(1000, ge=1)
    """Episodes of validation classes."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many validations without a better one; null: never."""
    keep: Literal["best", "last"] = "best"
    """Which weights become the model: those of the best validation, or the last."""


class MetaRecipe(Config):
    """Stage 2: train a denoiser of class weights on a feature bank and evaluate it.

    >>> recipe = MetaRecipe(training=TrainingConfig(steps=500, shots=(1, 5)))
    >>> recipe.denoiser.kind, recipe.training.steps, recipe.training.noise
    ('gnn', 500, 0.1)
    """

    name: str = "wdae-gnn"
    """What the method is called in tables; where ``method`` is given, by default its name."""
    method: str | None = None
    """Another learned method to train in place of the denoiser: a name that `wdae methods` lists."""
    options: dict[str, float | int | bool | str] = Field({})
    """That method's own options, by name."""
    seed: int = Field(0, ge=0)
    """Every random choice follows from it."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products; auto: bfloat16 where the hardware computes in it."""
    compile: bool | None = None
    """torch.compile the training step; null: on a GPU."""
    memory_mb: float = Field(256.0, gt=0)
    """Cap on blocks of similarities and messages."""
    space: SpaceConfig = SpaceConfig()
    denoiser: DenoiserConfig = DenoiserConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _named_by_its_method(self) -> Self:
        if self.method is not None and "name" not in self.model_fields_set:
            self.__dict__["name"] = self.method
        return self
