"""Teach a trained classifier new classes from a few pictures each, without forgetting the old ones.

The names below are the public interface; they load when first used, so that ``import wdae`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wdae.version import __version__

if TYPE_CHECKING:
    from wdae.bank import FeatureBank
    from wdae.episodes import EpisodeSampler, EpisodeSpec
    from wdae.estimator import FewShotClassifier
    from wdae.evaluation.protocol import all_way, few_way
    from wdae.evaluation.results import Result, paired
    from wdae.methods import WDAE, InitialEstimate
    from wdae.nn import Denoiser
    from wdae.parts import Part
    from wdae.stage2.config import MetaRecipe
    from wdae.stage2.train import train as train_denoiser
    from wdae.synthetic import synthetic_bank

_HOMES = {
    "FewShotClassifier": "wdae.estimator",
    "FeatureBank": "wdae.bank",
    "Part": "wdae.bank",
    "synthetic_bank": "wdae.synthetic",
    "EpisodeSpec": "wdae.episodes",
    "EpisodeSampler": "wdae.episodes",
    "Denoiser": "wdae.nn",
    "InitialEstimate": "wdae.methods",
    "WDAE": "wdae.methods",
    "MetaRecipe": "wdae.stage2.config",
    "train_denoiser": "wdae.stage2.train:train",  # wdae.train is the package
    "few_way": "wdae.evaluation.protocol",
    "all_way": "wdae.evaluation.protocol",
    "Result": "wdae.evaluation.results",
    "paired": "wdae.evaluation.results",
}

__all__ = [
    "WDAE",
    "Denoiser",
    "EpisodeSampler",
    "EpisodeSpec",
    "FeatureBank",
    "FewShotClassifier",
    "InitialEstimate",
    "MetaRecipe",
    "Part",
    "Result",
    "__version__",
    "all_way",
    "few_way",
    "paired",
    "synthetic_bank",
    "train_denoiser",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'wdae' has no attribute {name!r}")
