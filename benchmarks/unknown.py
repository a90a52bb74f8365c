"""What a model calls unknown, which strays it notices, and whether what it says of that is true.

    python benchmarks/unknown.py --bank BANK                        # the ready model, its backbone's features
    python benchmarks/unknown.py --bank BANK --learn --name lite0   # a model learned from a bank
    python benchmarks/unknown.py --bank BANK --learn --name lite0-stranger --background lite0 --strangers
    python benchmarks/unknown.py --bank BANK --learn --name lite0-few --background lite0 --few 20 50

With ``--background`` the model is learned as from pictures that this network has seen: the classes that it
was trained on take part, and pictures of nothing. ImageNet's classes hold those that are asked for as unseen;
``--strangers`` leaves these out, so that what is unseen is strange to the network's classifier too, as most
things are that people photograph. With ``--few`` the model is one of so many classes and pictures of each, as
of a folder of somebody's own: no validation classes, so base classes play unknown.

Five novel classes at a time are added; false alarms are counted on held-out base pictures and on other
pictures of the five, catches on the novel classes that were not added. Everything was chosen on validation
classes. The pictures of nothing are made otherwise than those that a model is calibrated on: larger, with
words, as JPEG. In ``--tried`` draws what is expected of each class, now and with more examples, is compared
with what is found on pictures that it never got.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from common import keep
from wdae import FeatureBank, Part
from wdae.backbones.packaged import LITE, packaged
from wdae.bank import ClassSet
from wdae.classifier import Model
from wdae.classifier.embedded import embedded_model, imagenet_classes
from wdae.classifier.explain import explain
from wdae.classifier.learn_job import LearnConfig
from wdae.classifier.learning import learn_from_bank
from wdae.classifier.picture_backbone import load_backbone
from wdae.classifier.picture_bank import outlier_features
from wdae.classifier.predictions import is_unknown
from wdae.classifier.self_test import MORE

RATE, WAYS, QUERIES = 0.05, 5, 30
WORDS = ("the", "invoice", "total", "amount", "please", "find", "attached", "report", "section", "sale")


def called_unknown(model: Model, rows: torch.Tensor) -> float:
    return float(is_unknown(model, model.head, rows, model.scores(rows), RATE).double().mean())


def added(
    base: Any, pool: ClassSet, held: torch.Tensor, n_shot: int, draws: int, tried: int
) -> dict[str, Any]:
    """False alarms, catches, and accuracies expected and found, with WAYS novel classes of so many shots."""
    generator = torch.Generator().manual_seed(n_shot)
    rows: list[list[float]] = []
    tries: list[tuple[float, ...]] = []
    for number in range(draws):
        order = torch.randperm(pool.n_classes, generator=generator).tolist()
        chosen, others = order[:WAYS], order[WAYS:]
        images = {
            c: pool.of_class(c)[torch.randperm(int(pool.counts[c]), generator=generator)] for c in order
        }
        model = Model(base)
        model.add({f"new {c}": images[c][:n_shot] for c in chosen})
        own = torch.cat([images[c][n_shot : n_shot + QUERIES] for c in chosen])
        known = held[torch.randperm(len(held), generator=generator)[: WAYS * QUERIES]]
        unseen = torch.cat([images[c][:QUERIES] for c in others])
        rows.append([called_unknown(model, some) for some in (known, own, unseen)])
        if number < tried:
            tries += [
                one for c in chosen if (one := expected_and_found(model, f"new {c}", images[c][n_shot:]))
            ]
    values = np.array(rows)
    names = ("base_called_unknown", "added_called_unknown", "unseen_called_unknown")
    record: dict[str, Any] = dict(zip(names, values.mean(0).tolist(), strict=True))
    record["unseen_ci95"] = float(1.96 * values[:, 2].std(ddof=1) / draws**0.5)
    if tries:
        for end, (expected, found) in (("", (0, 1)), (f"_with_{MORE}_more", (2, 3))):
            said, true = np.array(tries)[:, (expected, found)].T
            record |= {f"expected_accuracy{end}": float(said.mean()), f"accuracy{end}": float(true.mean())}
            record[f"error_of_a_class{end}"] = float(np.abs(said - true).mean())
    return record


def expected_and_found(model: Model, name: str, rows: torch.Tensor) -> tuple[float, ...] | None:
    """Accuracy that is expected of a class and found, now and with MORE examples more, on other pictures."""
    expected = explain(model, name).expected
    if expected is None:
        return None
    given, asked = rows[:MORE], rows[MORE:]
    place = model.names.index(name)
    found = [float((model.head.best(asked) == place).double().mean())]
    model.add({name: given}, update=True)
    found.append(float((model.head.best(asked) == place).double().mean()))
    model.undo()
    return expected.now, found[0], expected.more, found[1]


def strays(base: Any, pool: ClassSet, size: int, draws: int) -> dict[str, float]:
    """Classes of so many examples, sound or with one of another class: how many are warned about."""
    detector, generator = base.detector, torch.Generator().manual_seed(size)
    false, noticed = [], []
    for _ in range(draws):
        a, b = torch.randperm(pool.n_classes, generator=generator)[:2].tolist()
        rows = pool.of_class(a)[torch.randperm(int(pool.counts[a]), generator=generator)[:size]]
        other = pool.of_class(b)[torch.randint(int(pool.counts[b]), (1,), generator=generator)]
        false.append(bool((detector.agreement(rows) < detector.stray(size)).any()))
        noticed.append(bool(detector.agreement(torch.cat([rows[1:], other]))[-1] < detector.stray(size)))
    return {"false_warnings": float(np.mean(false)), "noticed": float(np.mean(noticed))}


def nothing(folder: Path, count: int) -> dict[str, list[Path]]:
    """Noise, pages of words and plain colours, as JPEG."""
    rng = np.random.default_rng(77)
    files: dict[str, list[Path]] = {}
    for i in range(count):
        side = (120, 224, 320, 640)[i % 4]
        noise = rng.normal(128, 50, (side, side, 3)) if i % 2 else rng.uniform(0, 256, (side, side, 3))
        page = Image.new("RGB", (side, side), "white" if i % 3 else tuple(rng.integers(150, 256, 3).tolist()))
        height = side / float(rng.choice([8, 15, 25]))
        for row in range(int(side / (1.4 * height))):
            line = " ".join(rng.choice(WORDS, 12))
            font = ImageFont.load_default(size=height)
            ImageDraw.Draw(page).text((0.05 * side, 1.4 * height * row), line, "black", font)
        flat = Image.new("RGB", (side, side), tuple(rng.integers(0, 256, 3).tolist()))
        pictures = {
            "noise": Image.fromarray(noise.clip(0, 255).astype(np.uint8)),
            "text": page,
            "flat": flat,
        }
        for kind, picture in pictures.items():
            files.setdefault(kind, []).append(folder / f"{kind}-{i}.jpg")
            picture.save(files[kind][-1], quality=90)
    return files


def own_classes(bank: FeatureBank, options: argparse.Namespace) -> tuple[torch.Tensor, ...] | None:
    """The classifier of the network, without the classes that are no base classes where so asked."""
    if options.background is None:
        return None
    found = packaged(options.background)
    unseen = {bank.class_names[c] for part in (Part.VALIDATION, Part.NOVEL) for c in bank.classes_of(part)}
    rows = [i for i, name in enumerate(imagenet_classes()) if not (options.strangers and name in unseen)]
    return found.weight.detach()[rows], found.bias.detach()[rows], found.mean_feature()


def of_few(bank: FeatureBank, classes: int, images: int) -> FeatureBank:
    """The bank with so many base classes, drawn at random, of so many images, and its novel classes."""
    generator = torch.Generator().manual_seed(0)
    stays = bank.parts == Part.NOVEL.code
    n_held = round(LearnConfig().held_out * images)
    for place in torch.randperm(bank.n_base, generator=generator)[:classes].tolist():
        own = bank.labels == bank.base_classes[place]
        for part, count in ((Part.BASE_TRAIN, images - n_held), (Part.BASE_HELD_OUT, n_held)):
            rows = (own & (bank.parts == part.code)).nonzero()[:, 0]
            stays[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return FeatureBank.build(
        bank.features[stays], bank.labels[stays], bank.class_names, bank.parts[stays], info=bank.info
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--learn", action="store_true", help="learn a model from the bank, by class means")
    parser.add_argument("--background", choices=sorted(LITE), help="the network that the features are of")
    parser.add_argument("--strangers", action="store_true", help="without the unseen classes among its own")
    parser.add_argument("--few", type=int, nargs=2, metavar=("CLASSES", "IMAGES"), help="of base classes")
    parser.add_argument("--name", default="resnet12")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--tried", type=int, default=4, help="draws whose classes are tried out too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bank = FeatureBank.open(options.bank)
    pictures, pool = bank.select(Part.BASE_HELD_OUT), bank.select(Part.NOVEL)
    if options.few:
        bank = of_few(bank, *options.few)
    base = {bank.class_names[c] for c in bank.base_classes}
    held = torch.cat([pictures.of_class(c) for c, name in enumerate(pictures.names) if name in base])
    model = embedded_model()
    if options.learn:
        backbone = None if options.background is None else load_backbone(options.background)
        outliers = None if backbone is None else outlier_features(backbone)
        own = own_classes(bank, options)
        model = learn_from_bank(bank, method="initial-estimate", outliers=outliers, background=own)
        model.backbone = backbone
    before = replace(model.base, detector=None)
    record: dict[str, Any] = {
        "model": options.name,
        "false_alarms": RATE,
        "background_classes": model.base.info.get("background", 0),
        "base_classes": len(model.base.names),
        "base_images": max(bank.counts(Part.BASE_TRAIN)) + max(bank.counts(Part.BASE_HELD_OUT)),
        "said": {
            k: v for k, v in model.base.calibration.figures.items() if k.startswith(("caught", "stray"))
        },
        "nothing_added": {
            "base_called_unknown": called_unknown(Model(model.base), held),
            "unseen_called_unknown": called_unknown(Model(model.base), pool.features),
        },
    }
    for n_shot in (1, 5, 20):
        record[f"added_{n_shot}"] = added(model.base, pool, held, n_shot, options.draws, options.tried)
        record[f"added_{n_shot}_by_best_score"] = added(before, pool, held, n_shot, options.draws, 0)
    record |= {f"strays_{size}": strays(model.base, pool, size, 400) for size in (3, 5, 10)}
    if model.backbone is not None:
        with tempfile.TemporaryDirectory() as folder:
            for kind, files in nothing(Path(folder), 30).items():
                record[f"{kind}_called_unknown"] = called_unknown(model, model.backbone.features(files))
    print(keep(f"unknown-{options.name}", record))
    print({k: v for k, v in record.items() if k != "said"})


if __name__ == "__main__":
    main()
