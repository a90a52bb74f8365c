"""Make the model that ships ready to use with the package, and the backbone that it sees with.

    ROUND="wdae pretrain --data.path DIR --data.held-out 100 --recipe recipes/mini-imagenet/"
    ${ROUND}stage1-resnet12-small.yaml --seed 0 -o zero
    ${ROUND}stage1-resnet12-small.yaml --seed 1 -o one
    ${ROUND}stage1-resnet12-small-taught.yaml --seed 0 --start zero/model \\
        --distillation.teachers zero/model one/model -o taught --dtype float16
    wdae extract --data DIR --backbone taught/model --size 72 -o bank --dtype int8
    python scripts/embed_backbone.py bank src/wdae/assets/resnet12 --model taught/model --side 72 \\
        --started-from zero/model --trained-on 'one NVIDIA H200'

Without ``--model`` the backbone in the folder stays as it is and the ready model is made anew, from a bank of
its features alone; with ``--same-method`` no method is trained either: the one it has stands against the
initial estimate. Which method it teaches with is chosen on validation classes: wDAE-GNN+ (for any number of
shots, or without whitening), wDAE-GNN or the balanced initial estimate, each by its recipe.

The bank must hold features of single pictures (no ``--flip-average``, ``--sizes``, ``--crops``), as they are
computed when somebody classifies one. The ready model is calibrated on base images that the backbone was not
trained on, and on validation classes. Novel classes are used for figures of the model card alone, after
everything is chosen. Every figure of the card is measured here. Classes get readable names.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from embed_bank import readable_names

from wdae import FeatureBank, InitialEstimate, Part, few_way
from wdae.classifier import Model, load, save
from wdae.classifier.embedded import READY
from wdae.classifier.learning import held_out_parts, learn_from_bank
from wdae.classifier.picture_backbone import EMBEDDED, PictureBackbone, of_stage1
from wdae.classifier.picture_bank import outlier_features
from wdae.classifier.summary import label
from wdae.config import load as checked
from wdae.config import recipe_file
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import ModelError
from wdae.evaluation.curve import base_novel_curve
from wdae.evaluation.results import Estimate
from wdae.methods.base import Method, base_classes
from wdae.nn.cosine import unit
from wdae.runs.environment import commit
from wdae.stage1.model_file import CARD, WEIGHTS, write_card, write_model
from wdae.stage2.config import MetaRecipe
from wdae.storage.files import sha256, write_text
from wdae.storage.records import read_json
from wdae.storage.tensors import load_tensors

COMMIT = commit()  # before anything is written
README = """# Model card: `resnet12`, a backbone for pictures, and a model ready to use

**What it is.** `model.safetensors` holds the weights of a small ResNet ({backbone}, {size} × {size}
pixels, {dim} features, {millions:.1f} million values, half precision, {backbone_mb:.1f} MB) and of
the cosine classifier that it was trained with; `model.json` says how, and names the {classes}
classes. `ready/` ({ready_mb:.1f} MB) is a model for `wdae add` and `wdae predict`: those classes'
weights and a trained method ({method}). No pictures are inside.

**How it was made.** Stage 1 on the base classes of MiniImageNet alone, {held_out} images of each
held out: {rounds} The recipes are in `model.json` and, with the commands, in
`scripts/embed_backbone.py` (commit {commit}). Everything was chosen on validation classes. The
ready model was learned from features of single pictures; the method saw training images of base
classes, its balance held-out ones and validation classes.

**Figures of the backbone.** Nearest class mean, 5-way, 15 queries a class, {episodes:,} episodes,
one picture at a time without averaging over its mirror image:

| classes | 1 shot | 5 shots |
|---|---|---|
{few_shot}

Its own classifier names {base} of the {held_images:,} held-out images of base classes rightly,
among {classes} classes.

**How the ready model's method was chosen.** By the area below the base–novel curve on validation
classes, 5-way, {choice_episodes:,} episodes; each candidate with step size ε and balance of its own,
found on other episodes:

| method | 1 shot: novel | area | 5 shots: novel | area |
|---|---|---|---|---|
{choice}

**Figures of the ready model**, on images and classes that were held out:

| figure | value |
|---|---|
{ready}

Five novel classes at a time added to the ready model as people add them (`Model.add`) and asked for
as they ask by default, {added_episodes} episodes; *among all* are the {classes} base classes and the
five. Measured after everything was chosen. `ready/` keeps features of {kept:,} held-out base images,
from which `wdae add` tells what a class costs:

| shots | novel, among novel | novel, among all | base, among base | base, among all | area |
|---|---|---|---|---|---|
{added}

**What it is for.** Trying the library on pictures out of the box, and small sets of everyday things
and animals. It is a small network that has seen {classes} classes at {size} pixels: with your own
data in thousands of pictures, train one (`wdae pretrain`); with a larger backbone at hand, use that
(`--backbone timm:NAME`). It has not been examined for faces, medicine, safety or anything else
where a mistake matters.

**Not in benchmarks.** It was trained on ImageNet pictures of {classes} classes. Do not use it to
compare methods on a benchmark that tests on those classes or pictures: ImageNet, ImageNet-FS,
tieredImageNet, or sets that share their kinds (birds, dogs and others). On MiniImageNet its novel
classes are unseen; its validation classes are not unseen, since everything was chosen on them. On
MiniImageNet some of the project's tables use it, and say so; the others have backbones of their own.

**Licence note.** The weights are ours, under the project's licence (Apache-2.0). MiniImageNet is
made of ImageNet pictures, whose terms allow research use; none of them is included.
"""


CANDIDATES = {
    "wdae-gnn+, any number of shots": "mini-imagenet/wdae-gnn-plus-any-shots",
    "wdae-gnn+": "mini-imagenet/wdae-gnn-plus",
    "wdae-gnn+, not whitened": "mini-imagenet/wdae-gnn-plus-no-shrink",
    "wdae-gnn": "mini-imagenet/wdae-gnn",
    "balanced initial estimate": None,
}
"""Methods that the ready model may teach with, and their recipes."""

_CHOICE_EPISODES, _ADDED_EPISODES = 2000, 600


def embed(
    bank: FeatureBank,
    out: Path,
    model: Path | None = None,
    recipe: dict[str, Any] | None = None,
    episodes: int = 20_000,
    started_from: Path | None = None,
    trained_on: str | None = None,
    same_method: bool = False,
    side: int | None = None,
) -> None:
    """Write the ready model to ``out/ready``, the backbone of ``model`` to ``out``, and the model card.

    ``side`` is that of the pictures from now on, which may be another than in training.
    """
    if bank.info.get("flip_average") or bank.info.get("crops"):
        raise ModelError("the bank's features are means; extract without --flip-average and --crops")
    source = out if model is None else model
    seen, own = bank.info.get("sizes"), side or read_json(source / CARD)["image_size"]
    if seen not in (None, [own]):
        raise ModelError(f"the bank's pictures are of {seen} px, the model's of {own}; extract those")
    if model is not None and bank.info.get("model_sha256") not in (None, sha256(model / WEIGHTS)):
        raise ModelError(f"the bank was extracted with another model than {model}")
    names = readable_names()
    if model is not None:
        half = {k: v.half() if v.is_floating_point() else v for k, v in load_tensors(model / WEIGHTS).items()}
        taken = _card(read_json(model / CARD), names) | {"trained_on": trained_on, "image_size": own}
        if started_from is not None:
            first = read_json(started_from / CARD)
            taken["started_from"] = {"recipe": _plain(first["recipe"]), "figures": first["figures"]}
        write_model(out, half, taken)
    elif side is not None:
        write_card(out, read_json(out / CARD) | {"image_size": side})  # models name the weights' digest
    card = read_json(out / CARD)
    bank = replace(bank, class_names=tuple(names.get(name, name) for name in bank.class_names))
    if not bank.has(Part.BASE_HELD_OUT):
        print("no base images are held out: calibrated on images that the backbone knows", file=sys.stderr)
        bank = replace(bank, parts=_some_held_out(bank))
    facts = {"labels": "text", "source": "MiniImageNet, 64 base classes", "backbone": EMBEDDED}
    candidates: Mapping[str, str | Method | None] = CANDIDATES
    if same_method:
        there = load(out / READY).base
        candidates = {there.method.name: there.method, "balanced initial estimate": None}
    strange, few = outlier_features(of_stage1(out)), min(episodes, _CHOICE_EPISODES)
    ready, choice = choose(bank, facts, recipe or {}, few, strange, candidates)
    if same_method and ready.base.method.name == there.method.name:
        ready.base.info.update({key: there.info[key] for key in ("denoiser", "recipe") if key in there.info})
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
    write_text(out / "README.md", _readme(card, bank, out, choice, episodes))


def choose(
    bank: FeatureBank,
    facts: dict[str, str],
    recipe: dict[str, Any],
    episodes: int,
    outliers: dict[str, torch.Tensor],
    candidates: Mapping[str, str | Method | None],
) -> tuple[Model, str]:
    """The model with the largest area below its base–novel curve, and a table of all candidates.

    ε and balance are found on validation classes too; the episodes here are others.
    """
    found, lines = [], []
    for name, file in candidates.items():
        if isinstance(file, Method):
            asked: dict[str, Any] = {"method": file}
        elif file is None:
            asked = {"method": InitialEstimate.name}
        else:
            asked = {"recipe": checked(MetaRecipe, recipe_file(file), recipe)}
        model = learn_from_bank(bank, info=facts, outliers=outliers, **asked)
        n_query = min(15, min(bank.counts(Part.VALIDATION)) - 5)
        options: dict[str, Any] = {"n_query": n_query, "n_episodes": episodes, "part": Part.VALIDATION}
        n_way = min(5, len(bank.classes_of(Part.VALIDATION)))
        results = [few_way(model.base.method, bank, k, n_way=n_way, seed=99, **options) for k in (1, 5)]
        cells = [f"{r.metrics[m]} %" for r in results for m in ("novel", "area")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        found.append((sum(r.metrics["area"].mean for r in results), model))
    return max(found, key=lambda pair: pair[0])[1], "\n".join(lines)


def added(model: Model, bank: FeatureBank, n_shot: int, episodes: int, n_query: int) -> list[Estimate]:
    """When people add five novel classes to a model: accuracies of novel and base images, and the area."""
    pool, held, n_base = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT), len(model.base.names)
    n_way = min(5, pool.n_classes)
    spec = EpisodeSpec(n_way, (n_shot,), n_query, n_way * n_query)
    drawn = EpisodeSampler(pool, spec, 1234, base_query=held).draw(0, episodes)
    own = n_base + torch.arange(n_way).repeat_interleave(n_query)
    rows = []
    for i in range(episodes):
        one = Model(model.base)
        one.add({f"new class {c}": pool.features[drawn.support[i, c]] for c in range(n_way)})
        novel = one.scores(pool.features[drawn.query[i].flatten()])
        base, labels = one.scores(held.features[drawn.base_query[i]]), drawn.base_query_label[i]
        right = [
            novel[:, n_base:].argmax(1) + n_base == own,
            novel.argmax(1) == own,
            base[:, :n_base].argmax(1) == labels,
            base.argmax(1) == labels,
        ]
        curve = base_novel_curve(torch.cat([novel, base]), torch.cat([own, labels]), n_base)
        rows.append((*(float(one.double().mean()) for one in right), curve.area))
    return [Estimate.of(column) for column in zip(*rows, strict=True)]


def _readme(card: dict[str, Any], bank: FeatureBank, out: Path, choice: str, episodes: int) -> str:
    few_shot, shots, few = [], [], min(episodes, _ADDED_EPISODES)
    ready = load(out / READY)
    for part in (Part.VALIDATION, Part.NOVEL):
        if not bank.has(part):
            continue
        n_way = min(5, len(bank.classes_of(part)))
        n_query = min(15, min(bank.counts(part)) - 5)
        options: dict[str, Any] = {"n_way": n_way, "n_query": n_query, "n_episodes": episodes, "joint": False}
        found = [few_way(InitialEstimate(), bank, k, part=part, **options) for k in (1, 5)]
        cells = " | ".join(f"{result.metrics['novel']} %" for result in found)
        few_shot.append(f"| {len(bank.classes_of(part))} {part.value} | {cells} |")
        if part is Part.NOVEL:
            for k in (1, 5):
                cells = " | ".join(
                    f"{accuracy.percent()} %" for accuracy in added(ready, bank, k, few, n_query)
                )
                shots.append(f"| {k} | {cells} |")
    held = bank.select(Part.BASE_HELD_OUT)
    right = (held.features @ unit(base_classes(bank).weights).T).argmax(1) == held.labels
    figures = ready.base.calibration.figures
    tensors = load_tensors(out / WEIGHTS)
    widths = card["backbone_options"].get("widths")
    text = README.format(
        backbone=card["backbone"] + (f" of widths {'-'.join(map(str, widths))}" if widths else ""),
        size=card["image_size"],
        dim=bank.dim,
        millions=sum(t.numel() for t in tensors.values()) / 1e6,
        backbone_mb=(out / WEIGHTS).stat().st_size / 1e6,
        ready_mb=sum(file.stat().st_size for file in (out / READY).iterdir()) / 1e6,
        classes=len(card["class_names"]),
        held_out=card["recipe"]["data"].get("held_out", 0),
        rounds=_rounds(card),
        commit=COMMIT,
        episodes=episodes,
        few_shot="\n".join(few_shot),
        base=f"{Estimate.of(right.double().numpy()).percent()} %",
        held_images=len(right),
        method=ready.base.method.name,
        choice_episodes=min(episodes, _CHOICE_EPISODES),
        choice=choice,
        ready="\n".join(
            f"| {label(k)} | {v:.3f} |"
            for k, v in figures.items()
            if not (k.endswith("_before") or k.startswith(("strength_", "gain_")))
        ),
        added_episodes=few,
        kept=0 if ready.base.held_out is None else len(ready.base.held_out.labels),
        added="\n".join(shots),
    )
    options = {"width": 110, "break_on_hyphens": False}
    parts = [part if part[0] in "#|" else textwrap.fill(part, **options) for part in text.split("\n\n")]
    return "\n\n".join(parts) + "\n"


def _rounds(card: dict[str, Any]) -> str:
    """How the backbone was trained, in a sentence or two."""
    recipe, first = card["recipe"], card.get("started_from")
    said = f"{(first or card)['recipe']['epochs']} epochs"
    if first is not None:
        said += f", then {recipe['epochs']} more from there"
    if taught := recipe.get("distillation"):
        said += f", taught by {taught['teachers']} networks of the first kind"
    said += "; of each round the weights that were best on validation classes"
    return said + (f". Trained on {card['trained_on']}." if card.get("trained_on") else ".")


def _card(card: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The card with readable names."""
    classes = [names.get(name, name) for name in card["class_names"]]
    return {
        **card,
        "recipe": _plain(card["recipe"]),
        "class_names": classes,
        "class_ids": card["class_names"],
    }


def _plain(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without paths of the machine that a model was trained on."""
    plain = recipe | {"data": {k: v for k, v in recipe["data"].items() if k not in ("path", "cache_dir")}}
    plain["start"] = recipe.get("start") is not None
    if taught := recipe.get("distillation"):
        plain["distillation"] = taught | {"teachers": len(taught["teachers"])}
    return plain


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
    parser.add_argument(
        "--started-from", type=Path, help="the model that the backbone's training went on from"
    )
    parser.add_argument("--trained-on", help="the machine, for the model card")
    parser.add_argument("--side", type=int, help="of the pictures from now on; that of training by default")
    parser.add_argument("--same-method", action="store_true", help="train no method; keep the one there is")
    parser.add_argument("--episodes", type=int, default=20_000, help="of the card's figures")
    args = parser.parse_args()
    facts = {
        name: getattr(args, name)
        for name in ("started_from", "trained_on", "same_method", "episodes", "side")
    }
    embed(FeatureBank.open(args.bank), args.out, args.model, **facts)


if __name__ == "__main__":
    main()
