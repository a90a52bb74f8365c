"""Classifier weights predicted from activations."""

from __future__ import annotations

from torch import Tensor

from wdae.methods.base import BaseClasses, Support
from wdae.methods.learned import ANY_SHOTS, Setting, WeightGenerator
from wdae.nn.linear import identity_linear, masked_mean


class Activations(WeightGenerator):
    """A learned map φ turns the mean activation of a class into its weight.

    Siyuan Qiao, Chenxi Liu, Wei Shen, Alan Yuille, "Few-Shot Image Recognition by Predicting Parameters from
    Activations", CVPR 2018, https://arxiv.org/abs/1706.03466 (section 3). φ is learned by classifying images
    among all classes.

    Departures: φ is linear and starts at the identity; base classes keep their learned weights, which the
    paper predicts too; scores are scaled cosines, not inner products. The paper's draws of single activations
    in place of means are the 1-shot episodes.
    """

    name = "activations"
    about = "a learned map from mean activations to weights"
    paper = "Qiao 2018"
    training_defaults = ANY_SHOTS

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.predict = identity_linear(setting.dim, bias=True)

    def novel_weights(self, support: Support, base: BaseClasses) -> Tensor:
        """φ of the mean activations."""
        novel: Tensor = self.predict(masked_mean(support.features, support.mask))
        return novel
