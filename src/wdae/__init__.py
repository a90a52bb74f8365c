"""Teach a trained classifier new classes from a few pictures each, without forgetting the old ones.

The names below are the public interface; they load when first used, so that ``import wdae`` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.lazy import lazy_names
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

__getattr__ = lazy_names(
    "wdae",
    {
        "wdae.api": ["train", "evaluate", "compare", "load", "load_recipe"],
        "wdae.stage2.config": ["MetaRecipe"],
        "wdae.comparison.config": ["CompareRecipe"],
        "wdae.bank": ["FeatureBank"],
        "wdae.parts": ["Part"],
        "wdae.bank.embedded": ["embedded_bank"],
        "wdae.synthetic": ["synthetic_bank"],
        "wdae.episodes": ["EpisodeSpec", "EpisodeSampler"],
        "wdae.methods": ["Method", "InitialEstimate", "WDAE"],
        "wdae.nn": ["Denoiser"],
        "wdae.stage2.train": ["train_denoiser=train"],
        "wdae.evaluation.protocol": ["few_way", "all_way"],
        "wdae.evaluation.results": ["Result", "paired"],
        "wdae.evaluation.table": ["ResultTable"],
        "wdae.classifier": ["learn", "LearnConfig", "Model", "BaseKnowledge", "changing", "save"],
        "wdae.classifier.predictions": ["predictions"],
        "wdae.estimator": ["FewShotClassifier"],
        "wdae.classifier.picture_backbone": ["PictureBackbone", "load_backbone"],
        "wdae.classifier.embedded": ["embedded_backbone", "embedded_model"],
        "wdae.serve.client": ["Client"],
    },
)
