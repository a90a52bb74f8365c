"""Feature banks: features with labels, class names and parts; in memory, on disk and on a device."""

from wdae.bank.class_set import ClassSet
from wdae.bank.feature_bank import FeatureBank, class_means
from wdae.parts import Part

__all__ = ["ClassSet", "FeatureBank", "Part", "class_means"]
