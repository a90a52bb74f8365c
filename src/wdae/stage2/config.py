"""The recipe of stage 2: which denoiser, how it is trained, how it is evaluated."""

from __future__ import annotations

from typing import Literal

from wdae.config import Config, Field


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
    refit_steps: int = Field(0, ge=0)
    """Steps in which base weights are learned anew, from class means; 0: as the bank has them, or class
    means where power or centre change the space."""
    choice_episodes: int = Field(500, ge=1)
    """Validation episodes on which power and centre are chosen, for 1 shot and for 5."""


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


class EvaluationConfig(Config):
    """How a model is measured."""

    protocol: Literal["few-way", "all-way"] = "few-way"
    """few-way: a few novel classes an episode; all-way: all of them at once."""
    shots: tuple[int, ...] = (1, 5)
    """Numbers of shots to report."""
    ways: int = Field(5, ge=2)
    """Novel classes of an episode (few-way)."""
    queries: int = Field(15, ge=1)
    """Queries a novel class (few-way)."""
    episodes: int = Field(2000, ge=1)
    """Test episodes."""
    step_episodes: int = Field(2000, ge=1)
    """Validation episodes on which ε is chosen for each number of shots."""
    steps: dict[int, float] | None = None
    """ε for each number of shots, given rather than chosen."""
    tuned_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of shots for which ε and balance are found, beside those to report; others follow from them."""
    step_rule: Literal["shrinking", "free"] = "shrinking"
    """shrinking: ε(K) = e / (1 + (K - 1) / k), two numbers for all K; free: each K has its own choice."""
    chosen_for: Literal["novel", "both"] = "novel"
    """What ε is chosen for: novel accuracy (the paper), or its mean with accuracy among all classes."""
    base_drop_limit: float | None = Field(0.005, ge=0)
    """By how much a chosen ε may lower accuracy of base images among base classes; null: by any. It counts
    where ε and balance are found together on validation classes: not with ``balance`` base or off."""
    balance: Literal["auto", "validation", "base", "off"] = "auto"
    """Where the constant that puts novel scores on a par with base scores is found: on validation classes, on
    held-out images of base classes that play novel, or nowhere (off, the paper). auto: the first there is."""
    refine_base: bool = True
    """Whether base weights move as well (the paper), or stay as learned."""
    refinements: int = Field(1, ge=1)
    """Refinement steps (the paper: 1)."""


class MetaRecipe(Config):
    """Stage 2: train a denoiser of class weights on a feature bank and evaluate it.

    >>> recipe = MetaRecipe(training=TrainingConfig(steps=500, shots=(1, 5)))
    >>> recipe.denoiser.kind, recipe.training.steps, recipe.training.noise
    ('gnn', 500, 0.1)
    """

    name: str = "wdae-gnn"
    """What the method is called in tables."""
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
