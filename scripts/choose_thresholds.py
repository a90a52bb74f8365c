"""Choose when ``wdae explain`` calls an example out of place, on validation classes only.

    python scripts/choose_thresholds.py runs/wrn-bank

``OUT_OF_PLACE`` (wdae.classifier.explain) is the highest share of the usual agreement at which an example of
at most 5 % of sound classes is called out of place. Novel classes are never looked at. Models with a detector
of the unknown do not need it: they compare likelihoods.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from wdae import FeatureBank, Part
from wdae.bank import ClassSet
from wdae.nn.cosine import unit

FALSE_WARNINGS = 0.05
DRAWS = 1000
SIZES = (3, 5, 10)  # examples of a class, where one of them may be out of place


def drawn(images: ClassSet, n: int, generator: torch.Generator, classes: int = 1) -> Tensor:
    """Images ``[classes, n, D]`` of classes drawn at random."""
    chosen = torch.randperm(images.n_classes, generator=generator)[:classes].tolist()
    rows = [images.of_class(c) for c in chosen]
    return torch.stack([some[torch.randperm(len(some), generator=generator)[:n]] for some in rows])


def loneliness(pool: ClassSet, generator: torch.Generator, strangers: bool) -> Tensor:
    """The lowest agreement of an example with the others, as a share of what is usual among them."""
    found = []
    for size in SIZES:
        for _ in range(DRAWS):
            mine, other = drawn(pool, size, generator, classes=2)
            if strangers:
                mine = torch.cat([mine[1:], other[:1]])
            agreement = (mine * unit(mine.sum(0) - mine)).sum(1)
            share = agreement / agreement.median()
            found.append(share[-1] if strangers else share.min())
    return torch.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bank", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    pool = FeatureBank.open(args.bank).select(Part.VALIDATION)
    share = float(loneliness(pool, generator, strangers=False).quantile(FALSE_WARNINGS))
    caught = float((loneliness(pool, generator, strangers=True) < share).double().mean())
    print(f"chosen: OUT_OF_PLACE = {share:.2f}; a stranger is noticed in {caught:.0%} of cases")


if __name__ == "__main__":
    main()
