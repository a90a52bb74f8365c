"""What a model knows of its base classes, and the method that makes weights for classes added to them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.calibration.pseudo_novel import Weighing
from wdae.calibration.unknown import Detector
from wdae.classifier.head import Head
from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Support, WeightAdapter
from wdae.methods.calibration import Calibration
from wdae.methods.wdae import WDAE
from wdae.nn.class_index import ClassIndex
from wdae.nn.cosine import unit
from wdae.nn.graph import MANY, ClassGraph, build_graph
from wdae.nn.space import FeatureSpace

RETURNED = "held_out_returned"
"""In a model's info: base weights have learned from the pictures that were held out, after all was found."""
MOST_KEPT = 2000
"""Held-out pictures that a model keeps the features of."""
_MOST_BYTES = 4_000_000
_MOST_WEIGHTS = 2**23  # numbers: base weights from before the held-out pictures returned


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Pictures of base classes that were held out: what additions cost is measured on them.

    Shapes: features ``[M, D]``, unit rows in the method's space, half precision; labels ``[M]``; weights
    ``[N, D]``, half precision: of the base classes before they learned from these pictures too, where they
    did; None where they never did, in older models, and of very many classes.
    """

    features: Tensor
    labels: Tensor
    weights: Tensor | None = None

    @classmethod
    def some(cls, images: ClassSet, seed: int) -> HeldOut:
        """As many as a model keeps, from each class in turn, drawn at random.

        >>> from wdae import Part, synthetic_bank
        >>> bank = synthetic_bank(4, 0, 0, 20, 8, held_out_per_class=5)
        >>> HeldOut.some(bank.select(Part.BASE_HELD_OUT), seed=0).features.shape
        torch.Size([20, 8])
        """
        most = min(MOST_KEPT, _MOST_BYTES // (2 * images.dim))
        labels = images.labels.cpu()
        keys = torch.rand(len(labels), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        order = (labels.double() + keys).argsort()  # class after class, in random order within each
        counts = images.counts.cpu()
        rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        rows = order[(rank.double() + keys[order]).argsort()[:most]].sort().values
        return cls(images.features[rows.to(images.device)].cpu().half(), labels[rows])

    def beside(self, weights: Tensor) -> HeldOut:
        """With the base weights ``[N, D]`` that have not learned from these pictures, if not too many."""
        return replace(self, weights=weights.cpu().half()) if weights.numel() <= _MOST_WEIGHTS else self


@dataclass(frozen=True, eq=False)
class BaseKnowledge:
    """The base classes and everything that adding classes leaves alone.

    Args:
        names: of the base classes.
        weights: of the base classes ``[N, D]``, unit rows, in the method's space.
        counts: images behind each of them ``[N]``; how much more examples of it can move its weight.
        method: a trained wDAE or, where there were too few classes to train one, the initial estimate.
        scale: γ of the base classifier, for a method without a balance.
        graph: of the base classes, if there is a GNN denoiser; spares building it.
        info: provenance, recipe, how labels are to be read; JSON values.
        held_out: pictures that the calibration was found on; base weights that were learned with the model
            have seen them since. None where there were none, and in older models.
        detector: tells what resembles no class; None likewise.

    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> base.dim, base.estimate(3 * torch.eye(4)[2:3]).tolist()
    (4, [0.0, 0.0, 1.0, 0.0])
    """

    names: tuple[str, ...]
    weights: Tensor
    counts: Tensor
    method: Weighing
    scale: float = 10.0
    graph: ClassGraph | None = None
    info: dict[str, Any] = field(default_factory=dict)
    held_out: HeldOut | None = None
    detector: Detector | None = None

    @classmethod
    def of_weights(
        cls,
        names: Sequence[str],
        weights: Tensor,
        method: WDAE,
        counts: Tensor | None = None,
        many: int = MANY,
    ) -> BaseKnowledge:
        """Any number of base classes by their weights ``[N, D]``, with a method that was trained on fewer.

        Where the method has a space of its own, the weights are those in it. Of very many, neighbours and
        candidates come from an index (:func:`wdae.nn.graph.build_graph`).

        Args:
            counts: images behind each of them ``[N]``; 100 by default.
            many: that of :func:`wdae.nn.graph.build_graph`.
        """
        method = copy.copy(method)
        if len(names) != len(weights):
            raise ModelError(f"{len(names)} names for {len(weights)} class weights; give one for each")
        graph = None
        if method.denoiser.kind == "gnn":
            graph = build_graph(weights, method.n_neighbours, method.inverse_temperature, many=many)
        if graph is not None and graph.index is not None:
            weights = graph.index.weights  # of unit length; a second copy may be gigabytes
            method.refine_base = False  # all of them would move with every change
        else:
            weights = unit(weights.float())
        if method.space is not None:
            method.space = replace(method.space, weights=weights)
        counts = torch.full((len(weights),), 100) if counts is None else counts
        return cls(tuple(names), weights, counts, method, method.scale or 10.0, graph)

    @property
    def dim(self) -> int:
        """Feature size D."""
        return self.weights.shape[1]

    @property
    def denoiser(self) -> WDAE | None:
        """The method where it has a denoiser."""
        return self.method if isinstance(self.method, WDAE) else None

    @property
    def space(self) -> FeatureSpace | None:
        """The space that features are compared in; None: as they are."""
        return self.method.space if isinstance(self.method, WDAE) else None

    @property
    def calibration(self) -> Calibration:
        """From cosines to scores whose softmax is a probability."""
        return self.method.balance or Calibration(self.scale)

    @property
    def index(self) -> ClassIndex | None:
        """The index of very many base classes."""
        return None if self.graph is None else self.graph.index

    def unlearned(self, head: Head) -> Head:
        """A classifier as it is without having learned from held-out pictures, to ask it of these.

        The classifier itself where it never has, and where nothing is known of how it was before. A base
        class that was given examples since stays as it is.
        """
        before = None if self.held_out is None else self.held_out.weights
        if before is None or head.n_base != len(before) or head.index is not None:
            return head
        kept = (head.base == self.weights).all(1, keepdim=True)
        return replace(head, base=torch.where(kept, before.float(), head.base)) if kept.any() else head

    def has_seen_held_out(self, head: Head) -> bool:
        """Whether a classifier has learned from the held-out pictures that it is to be asked of."""
        return bool(self.info.get(RETURNED)) and self.unlearned(head) is head

    @cached_property
    def adapter(self) -> WeightAdapter:
        """The method on the base classes, what they alone determine computed once."""
        base = BaseClasses(self.weights, self.scale)
        return self.method.on(base, self.graph) if isinstance(self.method, WDAE) else self.method.on(base)

    @torch.no_grad()
    def estimate(self, features: Tensor) -> Tensor:
        """The initial estimate ``[D]`` of a class from its examples ``[k, D]``, the same in any order."""
        order = sorted(range(len(features)), key=lambda row: features[row].numpy().tobytes())
        return self.adapter.estimate(Support(features[order][None, None]))[0, 0]

    def in_space(self, features: Tensor) -> Tensor:
        """Features ``[..., D]`` as they are compared with weights, unit rows."""
        return unit(features) if self.space is None else self.space.features(features)

    def with_examples(self, weights: Tensor, extra: dict[int, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Rows and base weights of classes that got more examples: the learned one counts as their images do.

        None where no class did.
        """
        moved = [
            unit(weights[row].double() * float(self.counts[row]) + self.in_space(examples).double().sum(0))
            for row, examples in extra.items()
        ]
        return (torch.tensor(list(extra)), torch.stack(moved).to(weights.dtype)) if moved else None
