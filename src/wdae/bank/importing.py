"""Banks from features that people have: which class is base, validation or novel, and what is held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wdae.bank.arrays import Array
from wdae.bank.encoding import decode
from wdae.bank.feature_bank import FeatureBank
from wdae.bank.labelled import LabelledFeatures, read_labelled, read_weights
from wdae.errors import BankError, nearest
from wdae.parts import Part
from wdae.printing import counted

SPLIT = (0.64, 0.16, 0.20)  # base, validation, novel: the shares of MiniImageNet's 100 classes
_BASE_TRAIN, _HELD_OUT = Part.BASE_TRAIN.code, Part.BASE_HELD_OUT.code


def import_bank(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    names: str | Path | None = None,
    base_weights: str | Path | None = None,
    cosine_scale: float | None = None,
    validation: Sequence[str] | None = None,
    novel: Sequence[str] | None = None,
    all_base: bool = False,
    held_out: int | None = None,
    seed: int = 0,
    info: Mapping[str, Any] | None = None,
) -> FeatureBank:
    """A bank from one file of features.

    Which classes are base, validation and novel is taken from the first of these that is there: the file's
    own array of parts; ``validation`` and ``novel`` (all other classes are base); ``all_base``, or base
    weights for every class (all are base); else classes are drawn at random, 64 % base, 16 % validation,
    20 % novel.

    Args:
        labels: file of labels, where the features' file has none.
        names: file of class names.
        base_weights: file of learned weights: a row for each base class, or a row for every class.
        validation: class names, or ``a..b`` for positions in the list of classes, both ends included.
        novel: as ``validation``.
        held_out: how many images of each base class, its last, to hold out; a fifth unless given.
        seed: for the random draw.
    """
    read = read_labelled(path, labels, names)
    weights, scale = (
        (read.base_weights, read.cosine_scale) if base_weights is None else read_weights(base_weights)
    )
    n_classes = len(read.names)
    facts: dict[str, Any] = {"source": Path(path).name}
    if read.parts is not None:
        if validation is not None or novel is not None or all_base:
            raise BankError(f"{path} says itself which part each image is in; leave out the options that do")
        parts = read.parts
    else:
        if all_base and (validation or novel):
            raise BankError("all classes base, or some of them validation or novel: give one of the two")
        if validation is not None or novel is not None:
            kinds = _named_kinds(read.names, validation or (), novel or ())
        elif all_base or (weights is not None and len(weights) == n_classes):
            kinds = np.full(n_classes, _BASE_TRAIN)
        elif weights is not None:
            raise BankError(
                f"there are base weights for {len(weights)} of {n_classes} classes; say which classes are"
                " not base: give the validation and the novel classes"
            )
        else:
            kinds = _random_kinds(n_classes, seed)
            facts["split"] = f"at random, seed {seed}"
        parts = _hold_out(kinds[read.labels], read.labels, read.names, held_out)
    return _build(
        read, parts, weights, cosine_scale if cosine_scale is not None else scale, facts | dict(info or {})
    )


def import_parts(
    files: Mapping[Part, str | Path],
    *,
    names: str | Path | None = None,
    base_weights: str | Path | None = None,
    cosine_scale: float | None = None,
    info: Mapping[str, Any] | None = None,
) -> FeatureBank:
    """A bank from one file for each part; classes of the same name in two files are one class."""
    read = {part: read_labelled(path, names=names) for part, path in files.items()}
    for part, one in read.items():
        if one.parts is not None:
            raise BankError(f"{files[part]} says itself which part each image is in; import it alone")
    sizes = {part.value: one.features.shape[1] for part, one in read.items()}
    if len(set(sizes.values())) > 1:
        raise BankError(f"the files differ in feature size: {sizes}")
    if names is not None:
        order = next(iter(read.values())).names
    else:
        every = {name for one in read.values() for name in one.names}
        order = sorted(
            every, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
        )
    place = {name: i for i, name in enumerate(order)}
    merged = LabelledFeatures(
        torch.cat([decode(one.features, one.scales) for one in read.values()]),
        None,
        np.concatenate([np.array([place[n] for n in one.names])[one.labels] for one in read.values()]),
        order,
        None,
        None,
        None,
    )
    parts = np.concatenate([np.full(len(one.labels), part.code) for part, one in read.items()])
    weights: Array | None
    if base_weights is not None:
        weights, scale = read_weights(base_weights)
    else:
        weights = next((one.base_weights for one in read.values() if one.base_weights is not None), None)
        scale = next((one.cosine_scale for one in read.values() if one.cosine_scale is not None), None)
    facts = {"source": {part.value: Path(path).name for part, path in files.items()}} | dict(info or {})
    return _build(merged, parts, weights, cosine_scale if cosine_scale is not None else scale, facts)


def _build(
    read: LabelledFeatures, parts: Array, weights: Array | None, scale: float | None, info: dict[str, Any]
) -> FeatureBank:
    bank = FeatureBank.build(
        read.features,
        read.labels,
        read.names,
        np.array(parts),
        cosine_scale=scale,
        info=info,
        scales=read.scales,
    )
    if weights is None:
        return bank
    if weights.dtype.kind not in "iuf":
        raise BankError(f"base weights are {weights.dtype}; give numbers")
    rows = torch.from_numpy(np.array(weights, dtype=np.float32))
    if len(rows) == len(read.names) != bank.n_base:
        rows = rows[bank.base_classes]  # weights were given for every class; those of the base classes count
    return bank.with_base_weights(rows, scale)


def _named_kinds(names: Sequence[str], validation: Sequence[str], novel: Sequence[str]) -> Array:
    kinds = np.full(len(names), _BASE_TRAIN)
    for part, wanted in ((Part.VALIDATION, validation), (Part.NOVEL, novel)):
        for position in _positions(names, wanted):
            if kinds[position] not in (_BASE_TRAIN, part.code):
                raise BankError(
                    f"class {names[position]!r} is given as validation and as novel; it can be one"
                )
            kinds[position] = part.code
    return kinds


def _positions(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Positions of class names and of ranges ``a..b``."""
    place = {name: i for i, name in enumerate(names)}
    out: list[int] = []
    for word in wanted:
        first, dots, last = word.partition("..")
        if word in place:
            out.append(place[word])
        elif dots and first.isdecimal() and last.isdecimal() and len(word) < 40:
            if not int(first) <= int(last) < len(names):
                raise BankError(
                    f"{word} is not a range of classes; there are {len(names)}: 0..{len(names) - 1}"
                )
            out.extend(range(int(first), int(last) + 1))
        else:
            raise BankError(f"no class is called {word!r}{nearest(word, names)}")
    return out


def _random_kinds(n_classes: int, seed: int) -> Array:
    n_validation, n_novel = (round(share * n_classes) for share in SPLIT[1:])
    if n_classes - n_validation - n_novel < 2 or not n_novel or not n_validation:
        raise BankError(
            f"{counted(n_classes, 'class is', 'classes are')} too few to draw base, validation and novel"
            " ones; say which classes are which, or that all are base"
        )
    order = torch.randperm(n_classes, generator=torch.Generator().manual_seed(seed)).numpy()
    kinds = np.full(n_classes, _BASE_TRAIN)
    kinds[order[:n_validation]] = Part.VALIDATION.code
    kinds[order[n_validation : n_validation + n_novel]] = Part.NOVEL.code
    return kinds


def _hold_out(parts: Array, labels: Array, names: Sequence[str], held_out: int | None) -> Array:
    """Move the last images of each base class to the held-out part."""
    parts = parts.copy()
    if held_out is not None and held_out < 0:
        raise BankError(f"cannot hold out {held_out} images; give 0 or more")
    base = np.flatnonzero(parts == _BASE_TRAIN)
    rows = base[np.argsort(labels[base], kind="stable")]
    sorted_labels = labels[rows]
    counts = np.bincount(sorted_labels, minlength=len(names))
    n_held = counts // 5 if held_out is None else np.where(counts > 0, held_out, 0)
    for label in np.flatnonzero((n_held >= counts) & (counts > 0)):
        raise BankError(
            f"class {names[int(label)]!r} has {counts[label]} images; holding out {n_held[label]}"
            " leaves none to train on"
        )
    place = np.arange(len(rows)) - np.searchsorted(sorted_labels, sorted_labels)  # of an image in its class
    parts[rows[place >= (counts - n_held)[sorted_labels]]] = _HELD_OUT
    return parts
