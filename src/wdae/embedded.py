"""What ships inside the package: the feature bank that ``wdae demo`` works on."""

from __future__ import annotations

from pathlib import Path

from wdae.bank import FeatureBank

ASSETS = Path(__file__).parent / "assets"
BANK = ASSETS / "mini-imagenet"


def embedded_bank() -> FeatureBank:
    """Real MiniImageNet features of our own WRN-28-10; what they are is in ``assets/README.md``.

    >>> bank = embedded_bank()
    >>> bank.n_base, bank.dim
    (64, 640)
    """
    return FeatureBank.open(BANK)
