"""What ships inside the package: the feature bank that ``wdae demo`` works on."""

from __future__ import annotations

from wdae.bank import FeatureBank
from wdae.synthetic import synthetic_bank


def embedded_bank() -> FeatureBank:
    """The bank ``wdae demo`` trains and measures on."""
    return synthetic_bank(n_base=64, n_validation=16, n_novel=20, images_per_class=100, dim=128, seed=0)
