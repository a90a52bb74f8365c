"""The recipe of an evaluation: protocol, episodes, and how ε and the balance are chosen."""

from __future__ import annotations

from typing import Literal

from wdae.config import Config, Field


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
    episode_seed: int | None = Field(None, ge=0)
    """Draws the test episodes; null: they follow from the recipe's seed, which training follows from."""
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
    held-out images of base classes that play novel, or nowhere (off, the paper). auto: for denoisers the
    first there is, for other methods off; of those, the ones that generate weights can have validation."""
    split_held_out: bool = False
    """Of the held-out pictures of each base class, one half to fit ε, balance and the limit on base loss on,
    the other to test with; off: all of them for both, so that base queries have been fitted on."""
    refine_base: bool = True
    """Whether base weights move as well (the paper), or stay as learned."""
    anchors: int = Field(0, ge=0, le=100)
    """Base images of a class that novel classes of several shots are fitted further against, with the refined
    weights as a prior; 0, or where base weights move too: weights stay as refined (the paper)."""
    prior: float = Field(0.3, gt=0)
    """Strength of that prior; beside intercepts it falls where shots are more than twenty."""
    anchor_share: float = Field(0.1, gt=0)
    """What the base images of a class count, all together, beside the shots of a novel class."""
    intercepts: bool = False
    """Whether the scores of a class that is fitted further get an intercept, with the same prior. From ten
    shots on base classes do too then, and weights of the same regression."""
    fewest_shots: int = Field(10, ge=1)
    """Shots from which on a class is fitted further."""
    refinements: int = Field(1, ge=1)
    """Refinement steps (the paper: 1)."""
