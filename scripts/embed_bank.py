"""Make the bank that ships with the package from the bank of ``wdae reproduce mini-imagenet``.

    wdae reproduce mini-imagenet --data DIR -o runs/paper
    python scripts/embed_bank.py runs/paper/banks/held-out src/wdae/assets/mini-imagenet

Of each class some images are taken, drawn from a seed, and features are projected to fewer dimensions, so
that the whole stays under 12 MB; classes get readable names. The projection is linear and keeps the base
weights as they are; beside them it keeps the directions in which training images of base classes are
largest. No other image has a say in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae import FeatureBank, Part
from wdae.bank.encoding import decode

DIMENSIONS = 640
IMAGES = {Part.BASE_TRAIN: 100, Part.BASE_HELD_OUT: 40, Part.VALIDATION: 150, Part.NOVEL: 300}
SEED = 0
KEPT_INFO = (
    "source",
    "backbone",
    "flip_average",
    "sizes",
    "crops",
    "crop_area",
    "precision",
    "figures",
    "model_sha256",
)
NAMES = """
n01532829 house finch, n01558993 robin, n01704323 triceratops, n01749939 green mamba, n01770081 harvestman,
n01843383 toucan, n01910747 jellyfish, n02074367 dugong, n02089867 Walker hound, n02091831 Saluki,
n02101006 Gordon setter, n02105505 komondor, n02108089 boxer, n02108551 Tibetan mastiff,
n02108915 French bulldog, n02111277 Newfoundland, n02113712 miniature poodle, n02120079 Arctic fox,
n02165456 ladybug, n02457408 three-toed sloth, n02606052 rock beauty, n02687172 aircraft carrier,
n02747177 ashcan, n02795169 barrel, n02823428 beer bottle, n02966193 carousel, n03017168 chime,
n03047690 clog, n03062245 cocktail shaker, n03207743 dishrag, n03220513 dome, n03337140 file,
n03347037 fire screen, n03400231 frying pan, n03476684 hair slide, n03527444 holster, n03676483 lipstick,
n03838899 oboe, n03854065 organ, n03888605 parallel bars, n03908618 pencil box, n03924679 photocopier,
n03998194 prayer rug, n04067472 reel, n04243546 slot, n04251144 snorkel, n04258138 solar dish,
n04275548 spider web, n04296562 stage, n04389033 tank, n04435653 tile roof, n04443257 tobacco shop,
n04509417 unicycle, n04515003 upright, n04596742 wok, n04604644 worm fence, n04612504 yawl,
n06794110 street sign, n07584110 consomme, n07697537 hotdog, n07747607 orange, n09246464 cliff,
n13054560 bolete, n13133613 ear, n01855672 goose, n02091244 Ibizan hound, n02114548 white wolf,
n02138441 meerkat, n02174001 rhinoceros beetle, n02950826 cannon, n02971356 carton, n02981792 catamaran,
n03075370 combination lock, n03417042 garbage truck, n03535780 horizontal bar, n03584254 iPod,
n03770439 miniskirt, n03773504 missile, n03980874 poncho, n09256479 coral reef, n01930112 nematode,
n01981276 king crab, n02099601 golden retriever, n02110063 malamute, n02110341 dalmatian,
n02116738 African hunting dog, n02129165 lion, n02219486 ant, n02443484 black-footed ferret,
n02871525 bookshop, n03127925 crate, n03146219 cuirass, n03272010 electric guitar, n03544143 hourglass,
n03775546 mixing bowl, n04146614 school bus, n04149813 scoreboard, n04418357 theater curtain,
n04522168 vase, n07613480 trifle
"""


def readable_names() -> dict[str, str]:
    """Readable names of MiniImageNet's classes, by WordNet number."""
    return dict(entry.strip().split(" ", 1) for entry in NAMES.replace("\n", " ").split(","))


def bank_and_out(about: str | None, *flags: str) -> argparse.Namespace:
    """What scripts that make an asset from a bank are given: the bank, the place, and their own flags."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", type=Path)
    parser.add_argument("out", type=Path)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def projection(features: Tensor, weights: Tensor, dimensions: int) -> Tensor:
    """Orthonormal directions ``[D, d]``: the span of the base weights, then the largest of the features.

    They are turned at random within their span: int8 keeps a vector best whose numbers are of one size.
    """
    kept = torch.linalg.qr(F.normalize(weights.double(), dim=1).T).Q
    rest = F.normalize(features.double(), dim=1)
    rest = rest - rest @ kept @ kept.T
    largest = torch.linalg.eigh(rest.T @ rest).eigenvectors[:, -(dimensions - kept.shape[1]) :]
    basis = torch.linalg.qr(torch.cat([kept, largest], dim=1)).Q
    generator = torch.Generator().manual_seed(SEED)
    turn = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)).Q
    return (basis @ turn).float()


def rows_of(bank: FeatureBank, rows: Tensor) -> Tensor:
    """Features ``[M, D]`` float32 of some rows of a bank."""
    return decode(bank.features[rows], None if bank.scales is None else bank.scales[rows])


def main() -> None:
    args = bank_and_out(__doc__)
    bank = FeatureBank.open(args.bank)
    if bank.base_weights is None:
        raise SystemExit(f"{args.bank} has no base weights; give a bank of a model of wdae pretrain")
    names = readable_names()
    generator = torch.Generator().manual_seed(SEED)
    rows = []
    for part, per_class in IMAGES.items():
        for label in bank.classes_of(part):
            own = ((bank.labels == label) & (bank.parts == part.code)).nonzero().flatten()
            drawn = torch.randperm(len(own), generator=generator)[:per_class]
            rows.append(own[drawn.sort().values])
    chosen = torch.cat(rows)
    weights = bank.base_weights
    training = (bank.parts == Part.BASE_TRAIN.code).nonzero().flatten()
    basis = projection(rows_of(bank, training), weights, DIMENSIONS)
    features = rows_of(bank, chosen)
    reduced = features @ basis
    for part in IMAGES:
        own = bank.parts[chosen] == part.code
        share = (reduced[own].square().sum(1) / features[own].square().sum(1)).mean()
        print(f"{part.value}: {100 * float(share):.2f} % of the squared length kept")
    info = {key: bank.info[key] for key in KEPT_INFO if key in bank.info}
    recipe = {key: value for key, value in bank.info["recipe"].items() if key != "data"}
    taken = {part.value: count for part, count in IMAGES.items()}
    small = FeatureBank.build(
        reduced,
        bank.labels[chosen],
        tuple(names[wnid] for wnid in bank.class_names),
        bank.parts[chosen],
        weights @ basis,
        bank.cosine_scale,
        {
            "name": "mini-imagenet-embedded",
            **info,
            "recipe": recipe,
            "images_a_class": taken,
            "projected_from": bank.dim,
        },
    )
    small.save(args.out, "int8")


if __name__ == "__main__":
    main()
