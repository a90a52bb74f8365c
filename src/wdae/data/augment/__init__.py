"""Variation of training pictures: batched, on any device, from an explicit generator."""

from wdae.config.augment import AugmentConfig
from wdae.data.augment.colour import apply_jitter, normalise, sample_jitter
from wdae.data.augment.crop import (
    apply_flip,
    apply_padded_crop,
    apply_resized_crop,
    sample_flip,
    sample_padded_crop,
    sample_resized_crop,
)
from wdae.data.augment.pipeline import (
    Draws,
    apply_augment,
    augment,
    prepare,
    sample_augment,
)

__all__ = [
    "AugmentConfig",
    "Draws",
    "apply_augment",
    "apply_flip",
    "apply_jitter",
    "apply_padded_crop",
    "apply_resized_crop",
    "augment",
    "normalise",
    "prepare",
    "sample_augment",
    "sample_flip",
    "sample_jitter",
    "sample_padded_crop",
    "sample_resized_crop",
]
