"""A small learned model and new classes for it; shared because learning takes a second or two."""

from __future__ import annotations

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.classifier import Ground, LearnConfig, learn
from wdae.parts import Part

QUICK = LearnConfig(hidden=16, steps=10, calibration_episodes=10)


@pytest.fixture(scope="session")
def ground(small_bank: FeatureBank) -> Ground:
    return learn(small_bank, QUICK, info={"labels": "text"}).ground


@pytest.fixture(scope="session")
def newcomers(small_bank: FeatureBank) -> dict[str, torch.Tensor]:
    """Eight classes of 20 examples each."""
    pool = small_bank.select(Part.NOVEL)
    return {f"new {i}": pool.of_class(i)[:20] for i in range(8)}
