"""A small learned model and new classes for it; shared because learning takes a second or two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.classifier import BaseKnowledge, learn
from wdae.parts import Part
from wdae.storage.trust import trusting

QUICK = {
    "denoiser.hidden": 16,
    "training.steps": 10,
    "training.validation_episodes": 20,
    "evaluation.step_episodes": 40,
    "space.choice_episodes": 20,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    """As --trust on every command; what is not trusted is tested with the files that name it."""
    with trusting("tiny_backbone:factory"):
        yield


@pytest.fixture(scope="session")
def base(small_bank: FeatureBank) -> BaseKnowledge:
    return learn(small_bank, recipe=QUICK, info={"labels": "text"}).base


@pytest.fixture(scope="session")
def newcomers(small_bank: FeatureBank) -> dict[str, torch.Tensor]:
    """Eight classes of 20 examples each."""
    pool = small_bank.select(Part.NOVEL)
    return {f"new {i}": pool.of_class(i)[:20] for i in range(8)}
