"""How large pictures should be for the backbone that ships: accuracy and pictures a second.

    python benchmarks/backbone_sides.py --pictures DIR [--sides 72 88]

DIR is MiniImageNet's: images/ and its lists. Features are of single whole pictures; *centred*: less the
mean of base-train features. A side is to be chosen by validation classes and speed; novel classes are its
test. Speed is that of the network alone in torch, in batches as the package takes them, on two threads: as
the machine can, and held to AVX2, in processes of their own. The table of docs/guides/backbones.md is made
from the record.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import best_of, keep
from export import GUIDES, between
from wdae.backbones.embed import batch_on, folded
from wdae.bank import FeatureBank, Part
from wdae.classifier.picture_backbone import PictureBackbone, embedded_backbone
from wdae.data import open_dataset
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.measure import evaluate
from wdae.methods import make
from wdae.printing import markdown_table, say

SIDES = (72, 88, 92)
SHOTS, SEED = (1, 5), 0
BASE = 50
"""Pictures of each base class: their mean hardly moves with more."""
PICTURES, ROUNDS = 64, 5
HELD_TO_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def features_of(backbone: PictureBackbone, folder: Path) -> FeatureBank:
    """Of all pictures of validation and novel classes, and of some of each base class."""
    images = open_dataset(folder, "mini-imagenet")
    base = images.rows(Part.BASE_TRAIN)
    first = [base[images.labels[base] == label][:BASE] for label in np.unique(images.labels[base])]
    rows = np.concatenate([*first, images.rows(Part.VALIDATION), images.rows(Part.NOVEL)])
    found = torch.cat([piece.features for piece in backbone.embed(images, rows=rows)])
    return FeatureBank.build(found, images.labels[rows], images.class_names, images.parts[rows])


def accuracies(bank: FeatureBank, part: Part, episodes: int) -> dict[str, Any]:
    """Of the nearest mean among the classes of a part, of features as they are and centred."""
    rows = ((bank.parts == Part.BASE_TRAIN.code) | (bank.parts == part.code)).nonzero()[:, 0]
    asked = bank.take(rows)
    parts = asked.parts.clone()
    parts[parts == part.code] = Part.NOVEL.code
    played = FeatureBank.build(asked.features, asked.labels, asked.class_names, parts)
    methods = [make("initial-estimate"), make("centred-mean")]
    config = EvaluationConfig(shots=SHOTS, episodes=episodes)
    found: dict[str, Any] = {}
    for result in evaluate(methods, played, config, seed=SEED):
        name = {"initial-estimate": "plain", "centred-mean": "centred"}[result.method]
        found[f"{name}_{result.n_shot}"] = result.metrics["novel"].to_dict()
    return found


def pictures_per_second(side: int) -> float:
    """Of the network alone, on two threads."""
    torch.set_num_threads(2)
    network = folded(embedded_backbone().network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(PICTURES, 3, side, side).contiguous(memory_format=torch.channels_last)
    parts = images.split(batch_on(torch.device("cpu"), side, PICTURES))
    with torch.no_grad():
        seconds = best_of(ROUNDS + 1, lambda: [network(part) for part in parts])
    return PICTURES / seconds


def speed_apart(side: int, environment: dict[str, str]) -> float:
    """The same in a process of its own, where the instructions that torch may use are set."""
    command = [sys.executable, __file__, "--speed", str(side)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(record: dict[str, Any]) -> str:
    """The record as the guide shows it."""
    head = ["px", "validation, 1 / 5 shots", "novel", "novel, centred", "pictures/s", "held to AVX2"]
    rows = []
    for one in record["sides"]:
        cells = []
        for part, name in (("validation", "plain"), ("novel", "plain"), ("novel", "centred")):
            means = (one[part][f"{name}_{n_shot}"]["mean"] for n_shot in SHOTS)
            cells.append(" / ".join(f"{100 * mean:.2f}" for mean in means))
        speeds = (f"{one[key]:.0f}" for key in ("pictures_per_s", "pictures_per_s_avx2"))
        rows.append([str(one["side"]), *cells, *speeds])
    return "\n".join(markdown_table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--sides", type=int, nargs="+", default=list(SIDES))
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--speed", type=int, help="print the speed at this side alone")
    parser.add_argument("--output", type=Path, help="folder of the record; the guide stays as it is then")
    args = parser.parse_args()
    if args.speed:
        print(pictures_per_second(args.speed))
        return
    if args.pictures is None:
        parser.error("--pictures DIR is needed, the folder of MiniImageNet")
    rows = []
    for side in args.sides:
        bank = features_of(embedded_backbone().seeing(side=side), args.pictures)
        one: dict[str, Any] = {"side": side}
        one["validation"] = accuracies(bank, Part.VALIDATION, args.episodes)
        one["novel"] = accuracies(bank, Part.NOVEL, args.episodes)
        rows.append(one)
        say(f"{side} px: {one}")
    for one in rows:  # when all else is done: it would disturb the clock
        one["pictures_per_s"] = speed_apart(one["side"], {})
        one["pictures_per_s_avx2"] = speed_apart(one["side"], HELD_TO_AVX2)
    say(keep("backbone-sides", {"sides": rows}, args.output))
    if args.output is None:
        guide = GUIDES / "backbones.md"
        guide.write_text(between(guide, "sides", table({"sides": rows})), encoding="utf-8")


if __name__ == "__main__":
    main()
