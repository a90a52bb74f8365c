"""The feature bank that ships inside the package."""

from __future__ import annotations

from pathlib import Path

from wdae.bank.feature_bank import FeatureBank

ASSETS = Path(__file__).parents[1] / "assets"


def embedded_bank() -> FeatureBank:
    """Real MiniImageNet features of our own WRN-28-10; ``assets/README.md`` describes them.

    >>> bank = embedded_bank()
    >>> bank.n_base, bank.dim
    (64, 640)
    """
    return FeatureBank.open(ASSETS / "mini-imagenet")
