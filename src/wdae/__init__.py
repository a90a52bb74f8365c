"""Teach a trained classifier new classes from a few pictures each, without forgetting the old ones.

The names below are the public interface; they load when first used, so that ``import wdae`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wdae.version import __version__

if TYPE_CHECKING:
    from wdae.api import compare, evaluate, load, load_recipe, train
    from wdae.bank import FeatureBank
    from wdae.bank.embedded import embedded_bank
    from wdae.classifier import BaseKnowledge, LearnConfig, Model, changing, learn, save
    from wdae.classifier.embedded import embedded_backbone, embedded_model
    from wdae.classifier.picture_backbone import PictureBackbone, load_backbone
    from wdae.classifier.predictions import predictions
    from wdae.comparison.config import CompareRecipe
    from wdae.episodes import EpisodeSampler, EpisodeSpec
    from wdae.estimator import FewShotClassifier
    from wdae.evaluation.protocol import all_way, few_way
    from wdae.evaluation.results import Result, paired
    from wdae.evaluation.table import ResultTable
    from wdae.methods import WDAE, InitialEstimate, Method
    from wdae.nn import Denoiser
    from wdae.parts import Part
    from wdae.serve.client import Client
    from wdae.stage2.config import MetaRecipe
    from wdae.stage2.train import train as train_denoiser
    from wdae.synthetic import synthetic_bank

_HOMES = {
    # stage 2, by the command line's names
    "train": "wdae.api",
    "evaluate": "wdae.api",
    "compare": "wdae.api",
    "load": "wdae.api",
    "load_recipe": "wdae.api",
    "MetaRecipe": "wdae.stage2.config",
    "CompareRecipe": "wdae.comparison.config",
    # features and episodes
    "FeatureBank": "wdae.bank",
    "Part": "wdae.parts",
    "embedded_bank": "wdae.bank.embedded",
    "synthetic_bank": "wdae.synthetic",
    "EpisodeSpec": "wdae.episodes",
    "EpisodeSampler": "wdae.episodes",
    # methods and figures
    "Method": "wdae.methods",
    "InitialEstimate": "wdae.methods",
    "WDAE": "wdae.methods",
    "Denoiser": "wdae.nn",
    "train_denoiser": "wdae.stage2.train:train",
    "few_way": "wdae.evaluation.protocol",
    "all_way": "wdae.evaluation.protocol",
    "Result": "wdae.evaluation.results",
    "ResultTable": "wdae.evaluation.table",
    "paired": "wdae.evaluation.results",
    # classifiers to add classes to
    "learn": "wdae.classifier",
    "LearnConfig": "wdae.classifier",
    "Model": "wdae.classifier",
    "BaseKnowledge": "wdae.classifier",
    "predictions": "wdae.classifier.predictions",
    "changing": "wdae.classifier",
    "save": "wdae.classifier",
    "FewShotClassifier": "wdae.estimator",
    "PictureBackbone": "wdae.classifier.picture_backbone",
    "load_backbone": "wdae.classifier.picture_backbone",
    "embedded_backbone": "wdae.classifier.embedded",
    "embedded_model": "wdae.classifier.embedded",
    # a service elsewhere
    "Client": "wdae.serve.client",
}

__all__ = [
    "WDAE",
    "BaseKnowledge",
    "Client",
    "CompareRecipe",
    "Denoiser",
    "EpisodeSampler",
    "EpisodeSpec",
    "FeatureBank",
    "FewShotClassifier",
    "InitialEstimate",
    "LearnConfig",
    "MetaRecipe",
    "Method",
    "Model",
    "Part",
    "PictureBackbone",
    "Result",
    "ResultTable",
    "__version__",
    "all_way",
    "changing",
    "compare",
    "embedded_backbone",
    "embedded_bank",
    "embedded_model",
    "evaluate",
    "few_way",
    "learn",
    "load",
    "load_backbone",
    "load_recipe",
    "paired",
    "predictions",
    "save",
    "synthetic_bank",
    "train",
    "train_denoiser",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'wdae' has no attribute {name!r}")
