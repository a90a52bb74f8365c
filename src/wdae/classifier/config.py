"""The recipe of ``wdae learn`` and of the estimator's fit; free of torch, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Literal

from wdae.config import Config, Field


class LearnConfig(Config):
    """From base features to a model that classes can be added to.

    >>> LearnConfig(kind="mlp", steps=500).shots
    (1, 2, 5)
    """

    seed: int = Field(0, ge=0)
    """Every random choice follows from it."""
    held_out: float = Field(0.2, ge=0, lt=1)
    """Share of each base class kept out of learning, to calibrate on; where the parts do not say it."""
    weight_epochs: int = Field(30, ge=0)
    """Passes over the images to learn base weights, where none are given; 0: class means."""
    kind: Literal["gnn", "mlp", "none"] = "gnn"
    """The denoiser: a graph network, one that sees each class alone, or none (initial estimates)."""
    hidden: int = Field(320, ge=1)
    """Size H of the denoiser's messages and hidden states."""
    layers: int = Field(2, ge=1)
    """Layers of the denoiser."""
    dropout: float = Field(0.95, ge=0, lt=1)
    """Dropout of the denoiser."""
    noise: float = Field(0.1, ge=0)
    """Noise on the denoiser's input in training."""
    steps: int = Field(300, ge=1)
    """Training steps of the denoiser, of up to 8 episodes each."""
    shots: tuple[int, ...] = Field((1, 2, 5), min_length=1)
    """Numbers of shots to train and calibrate for; others are interpolated."""
    neighbours: int = Field(10, ge=1)
    """Neighbours J of a class in the graph."""
    inverse_temperature: float = Field(5.0, gt=0)
    """Of the softmax over a class's neighbours."""
    refine_base: bool = False
    """Let base weights move too when classes are added, as in the paper; off, they stay as learned."""
    # Chosen on validation classes (scripts/choose_thresholds.py).
    novel_share: float = Field(0.5, gt=0, lt=1)
    """Share of the pictures to classify that are expected to be of added classes; less favours base ones."""
    max_classes: int = Field(1000, ge=5)
    """Base classes that take part in training and calibration; more are drawn from at random."""
    calibration_episodes: int = Field(120, ge=10)
    """Episodes of classes that play new, for each number of shots."""
