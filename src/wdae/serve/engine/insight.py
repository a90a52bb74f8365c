"""Insight into a model: what its classes are confused with, what they cost, a map, what to label next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wdae.classifier.cost import cost
from wdae.classifier.explain import Explanation, explain
from wdae.classifier.model import Model
from wdae.classifier.names import shorten
from wdae.classifier.self_test import MORE, coinciding
from wdae.nn.cosine import unit
from wdae.printing import counted
from wdae.serve.engine.loaded import Answer, Loaded
from wdae.serve.schemas import (
    ChangedPicture,
    ClassInsight,
    ConfusedWith,
    Cost,
    ExpectedOut,
    Insight,
    Point,
    Stray,
    TakenOut,
)

_CONFUSED = 5  # classes shown
_ENOUGH = 0.02  # what five examples more must bring to be worth taking
_CHANGED = 200  # pictures shown
_NEIGHBOURS = 3  # that an added class is drawn among
_CLEARLY = 0.15  # cosine by which a stray is nearer to another class than to its own; chosen on validation
# classes of the embedded bank: of sound examples about one in fifty is called a stray (5 classes of 5)
_APART = 0.02  # of points, in a map of side 1


@torch.no_grad()
def class_insight(loaded: Loaded, class_id: str) -> ClassInsight:
    """What is known of an added class: its confusions, whether it has enough examples, its strays."""
    model, name = loaded.model, loaded.classes[class_id]
    if name not in model.names:
        return ClassInsight(
            class_=name, class_id=class_id, examples=0, enough="it has no pictures yet: give it five"
        )
    found = explain(model, name)
    return ClassInsight(
        class_=name,
        class_id=class_id,
        examples=sum(at == class_id for at in loaded.placed.values()),
        expected=None
        if found.expected is None
        else ExpectedOut(now=found.expected.now, more=found.expected.more),
        enough=_enough(found),
        confused_with=[
            ConfusedWith(class_=one.name, share=one.share) for one in found.trial.confusions[:_CONFUSED]
        ],
        strays=_strays(model, name, found),
        warnings=list(found.warnings),
    )


def _enough(found: Explanation) -> str:
    if found.expected is None:
        return f"{counted(found.shots, 'example')}; what more would bring is not known of this model"
    now, more = found.expected.now, found.expected.more
    expected = f"about {now:.0%} of its pictures will be recognised"
    if more - now < _ENOUGH:
        return f"enough: {expected}, and {MORE} examples more would bring little"
    return f"more would help: {expected}; with {MORE} examples more, about {more:.0%}"


def _gain(expected: ExpectedOut | None) -> float:
    """What more examples of a class would bring."""
    return 0.0 if expected is None else expected.more - expected.now


def _strays(model: Model, name: str, found: Explanation) -> list[Stray]:
    """Examples that agree with the others too little, or clearly more with those of another added class."""
    features = torch.stack([example.feature for example in model.examples_of(name)])
    others = [other for other in model.added if other != name]
    own = (features * unit(features.sum(0) - features)).sum(1)  # [k]
    near = torch.full((len(features), 1), -1.0)
    if others and len(features) > 1:
        near = features @ torch.stack([_mean(model, other) for other in others]).T
    best = near.max(1)
    strays = []
    for i, view in enumerate(found.examples):
        if float(best.values[i] - own[i]) > _CLEARLY:
            strays.append(Stray(picture=view.source, looks_like=others[int(best.indices[i])]))
        elif view.out_of_place:
            strays.append(Stray(picture=view.source, looks_like=None))
    return strays


def _mean(model: Model, name: str) -> Tensor:
    return unit(torch.stack([example.feature for example in model.examples_of(name)]).sum(0))


@torch.no_grad()
def cost_of(loaded: Loaded) -> Cost:
    """What the added classes cost the base classes, and which pictures changed their answer."""
    model, before = loaded.model, Model(loaded.model.base)
    names, held_out, price = model.names, model.base.held_out, cost(loaded.model)
    changed: list[ChangedPicture] = []
    if held_out is not None and price is not None:
        features = held_out.features.float()
        old, new = (one.unlearned_head.linear(features).argmax(1) for one in (before, model))
        for i in (old != new).nonzero()[:, 0].tolist():
            at = (int(held_out.labels[i]), int(old[i]), int(new[i]))
            label, was, now = (names[c] for c in at)
            changed.append(ChangedPicture(picture=None, label=label, before=was, now=now))
    changed.sort(key=lambda one: (one.before != one.label, one.label))  # what was lost comes first
    taught: list[ChangedPicture] = []
    if loaded.placed:
        old, new = before.head.best(loaded.features), model.head.best(loaded.features)
        for i, (picture, class_id) in enumerate(loaded.placed.items()):
            if int(old[i]) != int(new[i]):
                taught.append(
                    ChangedPicture(
                        picture=picture,
                        label=loaded.classes[class_id],
                        before=names[int(old[i])],
                        now=names[int(new[i])],
                    )
                )
    taken: dict[str, int] = {}
    for one in price.taken if price else ():
        taken[one.added] = taken.get(one.added, 0) + one.n_taken
    return Cost(
        revision=loaded.revision,
        base_before=None if price is None else price.before,
        base_now=None if price is None else price.after,
        pictures=0 if price is None else price.n_pictures,
        sentence="this model keeps no held-out pictures of base classes"
        if price is None
        else price.as_text(),
        changed_total=len(changed),
        changed=changed[:_CHANGED],
        taught_total=len(taught),
        taught=taught[:_CHANGED],
        confusions=[
            TakenOut(class_=name, pictures=n) for name, n in sorted(taken.items(), key=lambda pair: -pair[1])
        ],
    )


@torch.no_grad()
def map_of(loaded: Loaded) -> list[Point]:
    """A place in the square from 0 to 1 for each class: near those that it resembles.

    Base classes are laid out once, by t-SNE of their weights, and stay where they are; an added class stands
    among the classes that it resembles most, a little aside of whoever stands there.
    """
    head = loaded.model.head
    n_base = head.n_base
    places = _laid_out(loaded)
    near = head.initial[n_base:] @ head.initial[:n_base].T  # [n, N]
    best = near.topk(min(_NEIGHBOURS, n_base), dim=1)
    shares = (20 * best.values).softmax(1).numpy()[..., None]
    added = (places[best.indices.numpy()] * shares).sum(1) if len(near) else places[:0]
    added = _aside(places, added)
    every = np.concatenate([places, added]).clip(0, 1)
    return [
        Point(
            class_=name,
            class_id=loaded.ids[name],
            kind="base" if i < n_base else "added",
            x=round(float(every[i, 0]), 4),
            y=round(float(every[i, 1]), 4),
        )
        for i, name in enumerate(head.names)
    ]


def _aside(fixed: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The points, each moved along a spiral until nobody stands nearer than ``_APART``."""
    there = list(fixed)
    moved = []
    for point in points:
        for turn in range(400):
            angle, far = 2.4 * turn, _APART * math.sqrt(turn) / 2
            at = point + far * np.array([math.cos(angle), math.sin(angle)])
            if np.linalg.norm(np.array(there) - at, axis=1).min() >= _APART:
                break
        there.append(at)
        moved.append(at)
    return np.array(moved).reshape(-1, 2)


_PLACES: dict[str, np.ndarray] = {}


def _laid_out(loaded: Loaded) -> np.ndarray:
    key = loaded.starting.digest
    if key not in _PLACES:
        _PLACES[key] = _tsne(loaded.model.base.weights.numpy())
    return _PLACES[key]


def _tsne(weights: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE

    if len(weights) < 5:
        angles = 2 * np.pi * np.arange(len(weights)) / max(1, len(weights))
        return 0.5 + 0.4 * np.stack([np.cos(angles), np.sin(angles)], 1)
    perplexity = min(12, (len(weights) - 1) / 3)
    found = TSNE(init="pca", perplexity=perplexity, metric="cosine", random_state=0).fit_transform(weights)
    low, high = found.min(0), found.max(0)
    return np.asarray(0.05 + 0.9 * (found - low) / np.maximum(high - low, 1e-9), dtype=np.float64)


def sentences(answer: Answer) -> tuple[list[str], Explanation]:
    """Why a picture got its answer, in words, with what is known of the likeliest class."""
    found, loaded = answer.prediction, answer.loaded
    best = found.classes[0]
    lines = [f"it looks most like {shorten(best)} ({found.probabilities[0]:.1%})"]
    if len(found.classes) > 1:
        lines[0] += f", then {shorten(found.classes[1])} ({found.probabilities[1]:.1%})"
    if found.unknown:
        lines.insert(0, "it resembles none of the classes enough to be one of them")
    if answer.nearest:
        picture, cosine = answer.nearest[0]
        name = loaded.classes[loaded.placed[picture]]
        lines.append(f"the nearest taught picture is of {shorten(name)} (cosine {cosine:.2f})")
    about = loaded.explained(best)
    kind = "a base class" if about.is_base else f"an added class with {counted(about.shots, 'example')}"
    tried = f": {about.tried_on} are recognised" if about.trial.n else ""
    lines.append(f"{shorten(best)} is {kind}{tried}")
    if about.neighbours and not about.is_base:
        near = " and ".join(shorten(one.name) for one in about.neighbours[:2])
        lines.append(f"{shorten(best)} {'listens most to' if about.listens else 'is most like'} {near}")
    if (same := coinciding(about.trial)) is not None:
        lines.append(
            f"{shorten(best)} nearly coincides with {shorten(same.name)}: {same.share:.0%} of"
            f" {about.trial.mistaken(same)}"
        )
    elif about.trial.confusions:
        one = about.trial.confusions[0]
        of = f"pictures of {'the two' if about.trial.n else shorten(one.name)}"
        of = "its examples" if one.alone else of
        lines.append(f"it is confused most with {shorten(one.name)}: {one.share:.1%} of {of}")
    return lines, about


def most_useful(loaded: Loaded, features: Tensor, probabilities: Sequence[Sequence[float]]) -> list[int]:
    """Unlabelled pictures by what their labels would teach: the unsure first, none like one before it."""
    if not len(features):
        return []
    rows = [torch.tensor(some, dtype=torch.float64).clamp(min=1e-12) for some in probabilities]
    unsure = torch.stack([-(row * row.log()).sum() / math.log(max(2, len(row))) for row in rows])
    vectors = loaded.model.base.in_space(features)
    alike = (vectors @ vectors.T).double()
    known = torch.zeros(len(features), dtype=torch.float64)
    order: list[int] = []
    left = torch.ones(len(features), dtype=torch.bool)
    for _ in range(len(features)):
        worth = (unsure + 1e-3) * (1 - known)
        worth[~left] = -1
        best = int(worth.argmax())
        order.append(best)
        left[best] = False
        known = torch.maximum(known, alike[best].clamp(0, 1))
    return order


def insight_of(loaded: Loaded, offset: int, limit: int) -> Insight:
    """Into some of the added classes; what was found at a revision is kept with it."""
    base = set(loaded.base_ids.values())
    added = [class_id for class_id in loaded.classes if class_id not in base]
    items = []
    for class_id in added[offset : offset + limit]:
        if class_id not in loaded.insights:
            loaded.insights[class_id] = class_insight(loaded, class_id)
        items.append(loaded.insights[class_id])
    empty = [one for one in items if not one.examples]
    useful = [one for one in items if _gain(one.expected) >= _ENOUGH]
    most = max(useful, key=lambda one: _gain(one.expected)) if useful else None
    needed = empty[0].class_ if empty else most.class_ if most else None
    return Insight(revision=loaded.revision, total=len(added), most_needed=needed, classes=items)
