"""Choose the prior of added classes and the thresholds of ``wdae explain``, on validation classes only.

    python scripts/choose_thresholds.py runs/wrn-bank

One half of the validation classes rehearses (as ``wdae learn`` does), the other half is added as a user
would, then the other way round. Novel classes are never looked at. The rules:

- ``novel_share`` (wdae.classifier.config): highest "all" accuracy, the mean of base and added queries'; of
  shares that differ by less than a tenth of a point, the one nearest to a half.
- ``_USUAL`` (wdae.classifier.explain): the lowest share of base pictures at which at most 5 % of new classes
  are said to
  coincide with a base class; ``_COINCIDES`` the same by cosine, for models without held-out base images.
- ``OUT_OF_PLACE`` (wdae.classifier.explain): the highest share at which an example of at most 5 % of sound
  classes is
  called out of place.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from wdae import FeatureBank, Part
from wdae.bank import ClassSet
from wdae.classifier import BaseKnowledge, LearnConfig, Model, learn
from wdae.nn.cosine import unit

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FALSE_WARNINGS = 0.05
SHOTS, WAYS, QUERIES = (1, 2, 5), 5, 15
DRAWS = 100  # for each half and number of shots
SIZES = (3, 5, 10)  # examples of a class, where one of them may be out of place


def halves(bank: FeatureBank) -> Iterator[tuple[FeatureBank, ClassSet]]:
    """A bank with every other validation class, and the images of the rest; twice."""
    classes = bank.classes_of(Part.VALIDATION)
    whole = bank.select(Part.VALIDATION)
    for turn in (0, 1):
        kept = torch.tensor(classes[turn::2])
        rows = ((bank.parts != Part.VALIDATION.code) | torch.isin(bank.labels, kept)).nonzero()[:, 0]
        rows = rows[bank.parts[rows] != Part.NOVEL.code]
        other = torch.arange(1 - turn, len(classes), 2)
        names = tuple(whole.names[c] for c in other.tolist())
        yield _rows(bank, rows), ClassSet(whole.features, whole.starts[other], whole.counts[other], names)


def _rows(bank: FeatureBank, rows: Tensor) -> FeatureBank:
    scales = None if bank.scales is None else bank.scales[rows]
    return replace(
        bank, features=bank.features[rows], scales=scales, labels=bank.labels[rows], parts=bank.parts[rows]
    )


def drawn(images: ClassSet, n: int, generator: torch.Generator, classes: int = 1) -> Tensor:
    """Images ``[classes, n, D]`` of classes drawn at random."""
    chosen = torch.randperm(images.n_classes, generator=generator)[:classes].tolist()
    rows = [images.of_class(c) for c in chosen]
    return torch.stack([some[torch.randperm(len(some), generator=generator)[:n]] for some in rows])


def all_accuracy(known: BaseKnowledge, pool: ClassSet, base: ClassSet, generator: torch.Generator) -> Tensor:
    """Accuracy among all classes for each of SHARES: the mean of base and added queries'."""
    totals = torch.zeros(len(SHARES), dtype=torch.float64)
    for n_shot in SHOTS:
        for _ in range(DRAWS):
            images = drawn(pool, n_shot + QUERIES, generator, WAYS)
            model = Model(known)
            model.add({f"new {i}": rows[:n_shot] for i, rows in enumerate(images)})
            rows = torch.randperm(len(base.features), generator=generator)[: WAYS * QUERIES]
            queries = torch.cat([images[:, n_shot:].flatten(0, 1), base.features[rows]])
            own = len(known.names) + torch.arange(WAYS).repeat_interleave(QUERIES)
            labels = torch.cat([own, base.labels[rows]])
            for place, share in enumerate(SHARES):
                totals[place] += (model.scores(queries, expect=share).argmax(1) == labels).double().mean()
    return totals / (len(SHOTS) * DRAWS)


def nearness(base: BaseKnowledge, pool: ClassSet, generator: torch.Generator) -> Tensor:
    """How near classes of a few examples are to the nearest base class: cosines ``[many]``."""
    found = []
    for n_shot in SHOTS:
        for _ in range(5 * DRAWS):
            centre = base.estimate(drawn(pool, n_shot, generator)[0])
            found.append((base.weights @ centre).max())
    return torch.stack(found)


def loneliness(pool: ClassSet, generator: torch.Generator, strangers: bool) -> Tensor:
    """The lowest agreement of an example with the others, as a share of what is usual among them."""
    found = []
    for size in SIZES:
        for _ in range(5 * DRAWS):
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
    accuracy, new, again, usual, sound, strange = [], [], [], [], [], []
    for bank, added in halves(FeatureBank.open(args.bank)):
        base = learn(bank, LearnConfig(seed=args.seed)).base
        held_out = bank.select(Part.BASE_HELD_OUT)
        accuracy.append(all_accuracy(base, added, held_out, generator))
        new.append(nearness(base, added, generator))
        again.append(nearness(base, held_out, generator))
        usual.append(torch.tensor(base.calibration.familiarity) / base.calibration.gain)
        sound.append(loneliness(added, generator, strangers=False))
        strange.append(loneliness(added, generator, strangers=True))
    mean = torch.stack(accuracy).mean(0)
    print("novel_share  all accuracy")
    for share, value in zip(SHARES, mean.tolist(), strict=True):
        print(f"{share:11.1f}  {100 * value:.2f}")
    good = [share for share, value in zip(SHARES, mean.tolist(), strict=True) if value > mean.max() - 1e-3]
    print(f"chosen: novel_share = {min(good, key=lambda share: abs(share - 0.5))}\n")

    curve, fresh, same = torch.stack(usual).mean(0), torch.cat(new), torch.cat(again)
    cosine = float(fresh.quantile(1 - FALSE_WARNINGS))
    place = int((curve >= cosine).nonzero()[0]) if bool((curve >= cosine).any()) else len(curve) - 1
    caught = float((same > cosine).double().mean())
    print(f"chosen: _COINCIDES = {cosine:.2f}, _USUAL = {place / (len(curve) - 1):.2f}")
    print(f"a class that is there already is noticed in {caught:.0%} of cases\n")

    share = float(torch.cat(sound).quantile(FALSE_WARNINGS))
    caught = float((torch.cat(strange) < share).double().mean())
    print(f"chosen: OUT_OF_PLACE = {share:.2f}; a stranger is noticed in {caught:.0%} of cases")


if __name__ == "__main__":
    main()
