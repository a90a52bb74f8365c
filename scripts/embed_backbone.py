"""Make the model that ships ready to use with the package, and the backbone that it sees with.

    wdae pretrain -r recipes/mini-imagenet/stage1-resnet12.yaml --data.path DIR --data.held-out 100 \\
        -o runs/resnet12 --dtype float16
    wdae extract --data DIR --backbone runs/resnet12/model -o runs/resnet12-bank
    python scripts/embed_backbone.py runs/resnet12-bank src/wdae/assets/resnet12 --model runs/resnet12/model

Without ``--model`` the backbone in the folder stays as it is and the ready model is made anew, from a bank of
its features alone. Which method it teaches with is chosen on validation classes: wDAE-GNN+, wDAE-GNN or the
initial estimate; their figures are printed, and those of the chosen one stand in the model card.

The bank must hold features of single pictures (no ``--flip-average``, ``--sizes``, ``--crops``), as they are
computed when somebody classifies one. The ready model is calibrated on base images that the backbone was not
trained on, and on validation classes; novel classes are looked at only for the figures of the model card,
which is written too.
Classes get readable names.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from embed_bank import readable_names

from wdae import FeatureBank, InitialEstimate, Part, few_way
from wdae.classifier import Model, learn, save
from wdae.classifier.embedded import READY
from wdae.classifier.learning import held_out_parts
from wdae.classifier.picture_backbone import EMBEDDED, PictureBackbone
from wdae.classifier.summary import label
from wdae.errors import ModelError
from wdae.runs.environment import commit
from wdae.stage1.model_file import CARD, WEIGHTS
from wdae.storage.files import sha256, write_text
from wdae.storage.records import read_json, write_json
from wdae.storage.tensors import load_tensors, save_tensors

README = """# Model card: `resnet12`, a backbone for pictures, and a model ready to use

**What it is.** `model.safetensors` holds the weights of a small ResNet ({backbone}, {size} × {size}
pixels, {dim} features, {millions:.1f} million values, half precision) and of the cosine classifier that
it was trained with; `model.json` says how, and names the {classes} classes. `ready/` is a model for `wdae
add` and `wdae predict`: those classes' weights and a trained method ({method}). No pictures are inside.

**How it was made.** Stage 1 on the base classes of MiniImageNet alone, {held_out} images of each held
out; the whole recipe is in `model.json`, the commands are in `scripts/embed_backbone.py` (commit
{commit}). Everything was chosen on validation classes. The ready model was learned from features of
single pictures; the denoiser saw training images of base classes, the calibration held-out ones and
validation classes.

**Figures.** Initial estimate (nearest class mean), 5-way, 15 queries a class, {episodes:,} episodes, one
picture at a time without averaging over its mirror image:

| classes | 1 shot | 5 shots |
|---|---|---|
{few_shot}

The ready model's method was chosen on validation classes, by accuracy among all classes; 5-way, each
candidate with ε and balance of its own, on other episodes than they were found on:

| method | 1 shot: novel | all | harmonic | 5 shots: novel | all | harmonic |
|---|---|---|---|---|---|---|
{choice}

The ready model, on images and classes that were held out:

| figure | value |
|---|---|
{ready}

**What it is for.** Trying the library on pictures out of the box, and small sets of everyday things and
animals. It is a small network that has seen {classes} classes at {size} pixels: with your own data in
thousands of pictures, train one (`wdae pretrain`); with a larger backbone at hand, use that (`--backbone
timm:NAME`). It has not been examined for faces, medicine, safety or anything else where a mistake
matters.

**Licence note.** The weights are ours, under the project's licence. MiniImageNet is made of ImageNet
pictures, whose terms allow research use; none of them is included.
"""


CANDIDATES: dict[str, dict[str, Any]] = {
    "wdae-gnn+": {},
    "wdae-gnn": {
        "name": "wdae-gnn",
        "space.power": 1.0,
        "space.centre": 0.0,
        "space.refit_steps": 0,
        "training.steps": 600,
        "training.validate_every": 100,
        "evaluation.refine_base": True,
        "evaluation.chosen_for": "novel",
    },
    "initial-estimate": {},
}


def embed(
    bank: FeatureBank,
    out: Path,
    model: Path | None = None,
    recipe: dict[str, Any] | None = None,
    episodes: int = 20_000,
) -> None:
    """Write the ready model to ``out/ready``, the backbone of ``model`` to ``out``, and the model card."""
    if bank.info.get("flip_average") or bank.info.get("crops"):
        raise ModelError("the bank's features are means; extract without --flip-average and --crops")
    source = out if model is None else model
    seen, own = bank.info.get("sizes"), read_json(source / CARD)["image_size"]
    if seen not in (None, [own]):
        raise ModelError(f"the bank's pictures are of {seen} px, the model's of {own}; extract those")
    if model is not None and bank.info.get("model_sha256") not in (None, sha256(model / WEIGHTS)):
        raise ModelError(f"the bank was extracted with another model than {model}")
    names = readable_names()
    if model is not None:
        out.mkdir(parents=True, exist_ok=True)
        half = {k: v.half() if v.is_floating_point() else v for k, v in load_tensors(model / WEIGHTS).items()}
        save_tensors(out / WEIGHTS, half, {"format": "wdae-stage1-model", "version": "1"})
        write_json(out / CARD, _card(read_json(model / CARD), names))
    card, tensors = read_json(out / CARD), load_tensors(out / WEIGHTS)
    bank = replace(bank, class_names=tuple(names.get(name, name) for name in bank.class_names))
    if not bank.has(Part.BASE_HELD_OUT):
        print("no base images are held out: calibrated on images that the backbone knows", file=sys.stderr)
        bank = replace(bank, parts=_some_held_out(bank))
    facts = {"labels": "text", "source": "MiniImageNet, 64 base classes", "backbone": EMBEDDED}
    ready, choice = choose(bank, facts, recipe or {}, min(episodes, 2000))
    known = {key: card[key] for key in ("image_size", "mean", "std")}
    ready.backbone = PictureBackbone(
        {
            "backbone": EMBEDDED,
            "backbone_options": {},
            **known,
            "weights_sha256": sha256(out / WEIGHTS),
        }
    )
    shutil.rmtree(out / READY, ignore_errors=True)
    save(ready, out / READY, half=True)
    write_text(out / "README.md", _readme(card, tensors, bank, ready, choice, episodes))


def choose(
    bank: FeatureBank, facts: dict[str, str], recipe: dict[str, Any], episodes: int
) -> tuple[Model, str]:
    """The model that does best among all classes on validation classes, and a table of all candidates.

    ε and balance are found on validation classes too; the episodes here are others.
    """
    found, lines = [], []
    for name, keys in CANDIDATES.items():
        how = {"method": name} if name == "initial-estimate" else {"recipe": keys | recipe}
        model = learn(bank, info=facts, **how)  # type: ignore[arg-type]
        n_query = min(15, min(bank.counts(Part.VALIDATION)) - 5)
        options: dict[str, Any] = {"n_query": n_query, "n_episodes": episodes, "part": Part.VALIDATION}
        n_way = min(5, len(bank.classes_of(Part.VALIDATION)))
        results = [few_way(model.base.method, bank, k, n_way=n_way, seed=99, **options) for k in (1, 5)]
        cells = [f"{r.metrics[m]} %" for r in results for m in ("novel", "all", "harmonic")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1])
        found.append((sum(r.metrics["all"].mean for r in results), model))
    return max(found, key=lambda pair: pair[0])[1], "\n".join(lines)


def _readme(
    card: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    bank: FeatureBank,
    ready: Model,
    choice: str,
    episodes: int,
) -> str:
    rows = []
    for part in (Part.VALIDATION, Part.NOVEL):
        if not bank.has(part):
            continue
        n_way = min(5, len(bank.classes_of(part)))
        n_query = min(15, min(bank.counts(part)) - 5)
        options: dict[str, Any] = {"n_way": n_way, "n_query": n_query, "n_episodes": episodes, "joint": False}
        found = [few_way(InitialEstimate(), bank, k, part=part, **options) for k in (1, 5)]
        cells = " | ".join(f"{result.metrics['novel']} %" for result in found)
        rows.append(f"| {len(bank.classes_of(part))} {part.value} | {cells} |")
    figures = ready.base.calibration.figures
    return README.format(
        backbone=card["backbone"],
        size=card["image_size"],
        dim=bank.dim,
        millions=sum(t.numel() for t in tensors.values()) / 1e6,
        classes=len(card["class_names"]),
        held_out=card["recipe"]["data"].get("held_out", 0),
        commit=commit(),
        episodes=episodes,
        few_shot="\n".join(rows),
        method=ready.base.method.name,
        choice=choice,
        ready="\n".join(f"| {label(k)} | {v:.3f} |" for k, v in figures.items() if not k.endswith("_before")),
    )


def _card(card: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The card with readable names, and without paths of the machine that the model was trained on."""
    recipe = dict(card["recipe"])
    recipe["data"] = {k: v for k, v in recipe["data"].items() if k not in ("path", "cache_dir")}
    recipe.pop("distillation", None)
    classes = [names.get(name, name) for name in card["class_names"]]
    return {**card, "recipe": recipe, "class_names": classes, "class_ids": card["class_names"]}


def _some_held_out(bank: FeatureBank) -> torch.Tensor:
    parts = bank.parts.clone()
    base = (parts == Part.BASE_TRAIN.code).nonzero()[:, 0]
    _, numbered = bank.labels[base].unique(return_inverse=True)
    parts[base] = held_out_parts(numbered, 0.2, 0)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bank", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="a backbone to take in; that in OUT by default")
    args = parser.parse_args()
    embed(FeatureBank.open(args.bank), args.out, args.model)


if __name__ == "__main__":
    main()
