"""FeatureBank: features of images with labels, class names, parts and the learned base weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import checks
from wdae.bank.class_set import ClassSet
from wdae.bank.encoding import Encoding, blocks, decode
from wdae.bank.format import open_bank, save_bank
from wdae.errors import BankError, listed
from wdae.parts import Part

Half = Literal["fit", "test"]
"""Of held-out images: those that something is fitted on, or those that it is tested with."""


@dataclass(frozen=True, eq=False)
class FeatureBank:
    """Features with labels, class names and parts; any number of images a class. Made by :meth:`build`.

    Shapes:
        features [M, D] float32, float16 or int8; scales [M] float32 (int8 only); labels [M] int64;
        parts [M] uint8, positions in ``list(Part)``; base_weights [n_base, D] float32, rows in the order of
        ``base_classes``; query_only [M] bool, images to be classified but never learned from, or None.

    >>> bank = FeatureBank.build(
    ...     torch.eye(4), labels=[0, 0, 1, 1], class_names=["cat", "okapi"],
    ...     parts=["base-train", "base-held-out", "novel", "novel"])
    >>> bank
    FeatureBank(2 classes; images: 1 base-train, 1 base-held-out, 2 novel; 4 features)
    >>> bank.n_base, bank.dim, bank.classes_of(Part.NOVEL)
    (1, 4, [1])
    """

    features: Tensor
    scales: Tensor | None
    labels: Tensor
    parts: Tensor
    class_names: tuple[str, ...]
    base_weights: Tensor | None = None
    cosine_scale: float | None = None
    info: dict[str, Any] = field(default_factory=dict)
    query_only: Tensor | None = None

    @classmethod
    def build(
        cls,
        features: Any,
        labels: Any,
        class_names: Sequence[str],
        parts: Any,
        base_weights: Any = None,
        cosine_scale: float | None = None,
        info: Mapping[str, Any] | None = None,
        *,
        scales: Any = None,
        query_only: Any = None,
    ) -> FeatureBank:
        """A bank from tensors or arrays, with everything checked.

        Args:
            features: [M, D], floating point, or int8 together with ``scales``; need not be normalised.
            labels: [M], positions in ``class_names``.
            parts: one :class:`Part` for all images, or [M]: parts, their names, or their codes.
            base_weights: [n_base, D], for the classes with base images in ascending order of label.
            cosine_scale: the learned γ of the cosine classifier that the weights belong to.
            info: provenance, JSON values: source, backbone, recipe, commit.
            query_only: [M] bool: images that may be classified but never learned from, such as ILSVRC's
                validation pictures; shots are then drawn from the others.
        """
        rows = torch.as_tensor(features).detach().cpu()
        if rows.dtype not in (torch.float32, torch.float16, torch.int8):
            if not rows.is_floating_point():
                raise BankError(
                    f"features are {rows.dtype}; give floating point, or int8 together with scales"
                )
            rows = rows.to(torch.float32)
        scale_column = None if scales is None else torch.as_tensor(scales).detach().cpu().to(torch.float32)
        label_column = _integers(labels, "labels")
        names = tuple(class_names)
        codes = _part_codes(parts, label_column.shape)
        checks.check_structure(rows, scale_column, label_column, codes, names)
        checks.check_values(rows, scale_column, label_column, names)
        try:
            provenance = json.loads(json.dumps(dict(info or {})))
        except (TypeError, ValueError) as error:
            raise BankError(f"info holds a value that JSON cannot: {error}") from error
        queries = None if query_only is None else torch.as_tensor(query_only).detach().cpu()
        checks.check_query_only(queries, codes)
        if queries is not None and not bool(queries.any()):
            queries = None
        bank = cls(
            rows.contiguous(), scale_column, label_column, codes, names, info=provenance, query_only=queries
        )
        if base_weights is None:
            return bank if cosine_scale is None else replace(bank, cosine_scale=float(cosine_scale))
        return bank.with_base_weights(base_weights, cosine_scale)

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> FeatureBank:
        """Open the bank in folder ``path``, its features mapped into memory rather than read.

        Args:
            verify: compare the files' checksums first; without it only sizes and structure are checked.
        """
        return open_bank(cls, path, verify=verify)

    def save(self, path: str | Path, dtype: Encoding = "float32") -> None:
        """Write the bank to the new folder ``path``, which appears only when it is whole."""
        save_bank(self, path, dtype)

    def with_base_weights(self, weights: Any, scale: float | None = None) -> FeatureBank:
        """The same bank with the base classes' learned weights [n_base, D] and the cosine scale γ."""
        rows = torch.as_tensor(weights).detach().cpu().to(torch.float32).contiguous()
        scale = None if scale is None else float(scale)
        checks.check_base_weights(rows, self.n_base, self.dim, scale)
        return replace(self, base_weights=rows, cosine_scale=scale)

    def __repr__(self) -> str:
        images = ", ".join(f"{sum(self.counts(part))} {part.value}" for part in Part if self.has(part))
        return f"FeatureBank({len(self.class_names)} classes; images: {images}; {self.dim} features)"

    @property
    def dim(self) -> int:
        """The feature size D."""
        return self.features.shape[1]

    @cached_property
    def digest(self) -> str:
        """What tells this bank from another: a digest of features, labels, parts, names and base weights."""
        found = hashlib.sha256(json.dumps(self.class_names).encode())
        for tensor in (
            self.labels,
            self.parts,
            self.features,
            self.scales,
            self.base_weights,
            self.query_only,
        ):
            if tensor is not None:
                found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()[:16]

    @property
    def n_base(self) -> int:
        """The number of base classes."""
        return len(self.base_classes)

    @cached_property
    def base_classes(self) -> list[int]:
        """The classes with base-train or base-held-out images, ascending."""
        return [c for c, n in enumerate(self._table[: Part.BASE_HELD_OUT.code + 1].sum(0).tolist()) if n]

    @cached_property
    def _table(self) -> Tensor:
        """How many images each class has in each part, [parts, classes]."""
        n_classes = len(self.class_names)
        cells = self.parts.long() * n_classes + self.labels
        return torch.bincount(cells, minlength=len(Part) * n_classes).view(len(Part), n_classes)

    def classes_of(self, part: Part) -> list[int]:
        """The classes of a part, ascending. The two base parts have the same ones: ``base_classes``."""
        if part.is_base:
            return list(self.base_classes)
        return self._table[part.code].nonzero()[:, 0].tolist()

    def counts(self, part: Part) -> list[int]:
        """How many images each class of ``classes_of(part)`` has in that part."""
        counts: list[int] = self._table[part.code].tolist()
        return [counts[c] for c in self.classes_of(part)]

    def has(self, part: Part) -> bool:
        """Whether the part has any image."""
        return any(self.counts(part))

    def has_queries(self, part: Part) -> bool:
        """Whether the part has images that may be classified but never learned from."""
        return self.query_only is not None and bool((self.query_only & (self.parts == part.code)).any())

    def half_of_held_out(self, half: Half) -> FeatureBank:
        """The same bank with one half of each base class's held-out images: to fit with, or to test with.

        Every other image, the first to fit with. A bank without any stays as it is.

        >>> from wdae import synthetic_bank
        >>> bank = synthetic_bank(4, 0, 5, 10, 8, held_out_per_class=5)
        >>> [sum(bank.half_of_held_out(half).counts(Part.BASE_HELD_OUT)) for half in ("fit", "test")]
        [12, 8]
        """
        held_out = (self.parts == Part.BASE_HELD_OUT.code).nonzero()[:, 0]
        labels, order = self.labels[held_out].sort(stable=True)
        place = torch.arange(len(labels)) - torch.searchsorted(labels, labels)  # of an image in its class
        kept = torch.ones(len(self.labels), dtype=torch.bool)
        kept[held_out[order][place % 2 == (1 if half == "fit" else 0)]] = False
        return self if bool(kept.all()) else self.take(kept)

    def take(self, rows: Tensor) -> FeatureBank:
        """The same bank with some of its images alone: their numbers, or a truth value for each image."""
        return replace(
            self,
            features=self.features[rows],
            scales=None if self.scales is None else self.scales[rows],
            labels=self.labels[rows],
            parts=self.parts[rows],
            query_only=None if self.query_only is None else self.query_only[rows],
        )

    def select(
        self,
        part: Part,
        *,
        queries: bool = False,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> ClassSet:
        """One part, class after class, rows of unit length, on ``device``.

        For the base parts the classes are ``base_classes``, and one without images has count 0. Of validation
        and novel classes, those images come that may be learned from or, with ``queries``, the query-only
        ones; held-out base images are queries all of them, and all come.
        """
        part = Part(part)
        if not self.has(part):
            there = ", ".join(p.value for p in Part if self.has(p))
            raise BankError(f"this bank has no {part.value} images; it has: {there}")
        wanted = self.parts == part.code
        if queries and not self.has_queries(part):
            raise BankError(f"this bank has no {part.value} images that are queries only")
        if self.query_only is not None and not part.is_base:
            wanted &= self.query_only if queries else ~self.query_only
        rows = wanted.nonzero()[:, 0]
        if not len(rows):
            raise BankError(
                f"all {part.value} images of this bank are queries only; some must be learned from"
            )
        rows = rows[self.labels[rows].argsort(stable=True)]
        features = torch.empty(len(rows), self.dim, dtype=dtype, device=device)
        for block in blocks(len(rows)):
            features[block] = self.unit_rows(rows[block], device).to(dtype)
        classes = self.classes_of(part)
        counts = torch.bincount(self.labels[rows], minlength=len(self.class_names))[classes]
        names = tuple(self.class_names[c] for c in classes)
        return ClassSet(features, (counts.cumsum(0) - counts).to(device), counts.to(device), names)

    def mean_length(self) -> float:
        """The mean length of base-train features, as the bank has them."""
        rows = (self.parts == Part.BASE_TRAIN.code).nonzero()[:, 0]
        lengths = [
            torch.linalg.vector_norm(
                decode(self.features[rows[some]], None if self.scales is None else self.scales[rows[some]]),
                dim=1,
            )
            for some in blocks(len(rows))
        ]
        return float(torch.cat(lengths).mean())

    def unit_rows(self, rows: Tensor, device: str | torch.device = "cpu") -> Tensor:
        """Some features as float32 of unit length, on a device."""
        scales = None if self.scales is None else self.scales[rows].to(device)
        return F.normalize(decode(self.features[rows].to(device), scales), dim=1)


def class_means(bank: FeatureBank) -> Tensor:
    """The unit-length mean of each base class's unit-length base-train features, [n_base, D].

    What stands in for the learned weights of a bank that has none.

    >>> bank = FeatureBank.build(torch.eye(3), [0, 0, 1], ["cat", "dog"], Part.BASE_TRAIN)
    >>> class_means(bank)
    tensor([[0.7071, 0.7071, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    if not bank.n_base:
        raise BankError("this bank has no base classes, so they have no means")
    empty = [c for c, n in zip(bank.base_classes, bank.counts(Part.BASE_TRAIN), strict=True) if not n]
    if empty:
        names = listed(repr(bank.class_names[c]) for c in empty)
        raise BankError(f"{len(empty)} base classes have no base-train images: {names}; give base weights")
    return bank.select(Part.BASE_TRAIN).unit_means()


def _integers(values: Any, name: str) -> Tensor:
    column = torch.as_tensor(values).detach().cpu()
    if column.is_floating_point() or column.dtype == torch.bool:
        raise BankError(f"{name} are {column.dtype}; give whole numbers")
    return column.to(torch.int64)


def _part_codes(parts: Any, shape: torch.Size) -> Tensor:
    if isinstance(parts, str):
        return torch.full(shape, Part.parse(parts).code, dtype=torch.uint8)
    if isinstance(parts, list | tuple) and any(isinstance(part, str) for part in parts):
        codes = {name: Part.parse(name).code for name in set(parts)}
        return torch.tensor([codes[part] for part in parts], dtype=torch.uint8)
    column = _integers(parts, "parts")
    if column.numel() and (int(column.min()) < 0 or int(column.max()) >= len(Part)):
        raise BankError(
            "parts hold a code out of range; accepted: " + ", ".join(f"{p.code} ({p.value})" for p in Part)
        )
    return column.to(torch.uint8)
