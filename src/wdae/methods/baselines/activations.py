"""Classifier weights predicted from activations."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from wdae.methods.base import BaseClasses, Scorer, Support, WeightScorer
from wdae.methods.learned import ANY_SHOTS, LearnedMethod, Random, Setting
from wdae.nn.linear import identity_linear, masked_mean


class Activations(LearnedMethod):
    """Qiao et al. 2018, "Few-shot image recognition by predicting parameters from activations".

    A map φ turns the mean activation of a class into its weight; it is learned by classifying images among
    all classes (section 3).

    Departures: φ is linear and starts at the identity; base classes keep their learned weights, where the
    paper predicts these too; scores are scaled cosines, not inner
    products. The paper's draws of single activations in place of means are the 1-shot episodes.
    """

    name = "activations"
    about: ClassVar[str] = "a learned map from mean activations to weights"
    paper: ClassVar[str] = "Qiao 2018"
    training_defaults = ANY_SHOTS

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.predict = identity_linear(setting.dim, bias=True)

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Cosine with the predicted weights."""
        novel: Tensor = self.predict(masked_mean(support.features, support.mask))
        known = base.weights if joint else None
        return WeightScorer(novel, known, self.scale)
