"""The feature bank that ships inside the package."""

from __future__ import annotations

from wdae.bank.feature_bank import FeatureBank
from wdae.config.shipped import ASSETS


def embedded_bank() -> FeatureBank:
    """Real MiniImageNet features of our own ResNet-12; ``assets/README.md`` describes them.

    >>> bank = embedded_bank()
    >>> bank.n_base, bank.dim
    (64, 640)
    """
    return FeatureBank.open(ASSETS / "mini-imagenet")
