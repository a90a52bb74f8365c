"""A model at a revision: what it was taught, and what it answers to questions about pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from wdae.classifier.explain import Explanation, explain
from wdae.classifier.light.answers import Answers
from wdae.classifier.model import Model
from wdae.classifier.names import chosen
from wdae.classifier.predictions import Prediction, TorchAnswers, answers_of
from wdae.data.decode import Pixels
from wdae.serve.engine.starting import Starting
from wdae.serve.observe import PREDICTIONS
from wdae.serve.schemas import ClassInsight

_NEAREST = 5


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model at a revision.

    Attributes:
        classes: ids of the classes that were taught, or made to be taught, and their names.
        placed: pictures and the ids of the classes that they are examples of.
        features: of each of these pictures ``[n, D]``, as the backbone gave them.
    """

    id: str
    revision: int
    starting: Starting
    model: Model
    classes: dict[str, str]
    placed: dict[str, str]
    features: Tensor
    insights: dict[str, ClassInsight] = field(default_factory=dict)
    explanations: dict[str, Explanation] = field(default_factory=dict)

    @cached_property
    def base_ids(self) -> dict[str, str]:
        """Ids of base classes by their names."""
        return {name: f"b{i}" for i, name in enumerate(self.model.base.names)}

    @cached_property
    def names(self) -> dict[str, str]:
        """All classes, taught ones first: id to name."""
        return self.classes | {class_id: name for name, class_id in self.base_ids.items()}

    @cached_property
    def ids(self) -> dict[str, str]:
        """All classes: name to id."""
        return {name: class_id for class_id, name in self.names.items()}

    @cached_property
    def answers(self) -> Answers | TorchAnswers:
        """What it answers, kept ready."""
        return TorchAnswers(self.model) if self.model.base.index is not None else answers_of(self.model)

    def asked(self, question: Question) -> Answers | TorchAnswers:
        """What it answers to a question."""
        only: str | Sequence[str] | None = question.only
        if only is not None:
            kind = only[0] if only in (("added",), ("base",)) else only
            only = chosen(kind, self.model.base.names, self.model.added)
        return self.answers.asked(expect=question.expect, only=only)

    @cached_property
    def vectors(self) -> Tensor:
        """The examples in the space that the model compares in, unit rows ``[n, D]``."""
        return self.model.base.in_space(self.features)

    def explained(self, name: str) -> Explanation:
        """What is known of a class; kept as long as the revision is."""
        if name not in self.explanations:
            self.explanations[name] = explain(self.model, name)
        return self.explanations[name]


@dataclass(frozen=True)
class Question:
    """What is asked of a picture."""

    top: int = 5
    expect: float | None = None
    only: tuple[str, ...] | None = None
    nearest: int = _NEAREST


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model says of a picture, at which revision; the nearest examples with their cosines."""

    loaded: Loaded
    prediction: Prediction
    nearest: tuple[tuple[str, float], ...]
    feature: Tensor


@torch.no_grad()
def embedded(starting: Starting, pictures: Sequence[Pixels]) -> Tensor:
    """Features ``[n, D]`` of pictures that were prepared for the backbone, as ``wdae predict`` has them."""
    batch = np.stack(pictures)
    if starting.graph is not None:
        return torch.from_numpy(starting.graph.features(batch))
    backbone = starting.backbone
    found: Tensor = backbone.network(
        backbone.preprocessing.prepare(torch.from_numpy(batch).permute(0, 3, 1, 2))
    )
    return found.float()


def built(
    starting: Starting,
    names: dict[str, str],
    placed: dict[str, str],
    features: Tensor,
    share: float | None,
    thumbnails: Mapping[str, Tensor] | None = None,
) -> Model:
    """The model that the examples give: those of all classes added to the starting model."""
    model = Model(starting.model.base)
    model.backbone = starting.backbone
    rows: dict[str, list[int]] = {class_id: [] for class_id in names}
    for i, class_id in enumerate(placed.values()):
        rows[class_id].append(i)
    pictures = list(placed)
    taught = {names[class_id]: some for class_id, some in rows.items() if some}
    if taught:
        model.add(
            {name: features[some] for name, some in taught.items()},
            update=True,
            sources={name: [pictures[i] for i in some] for name, some in taught.items()},
            pictures={
                name: torch.stack([thumbnails[pictures[i]] for i in some])
                for name, some in taught.items()
                if thumbnails and all(pictures[i] in thumbnails for i in some)
            },
        )
    if share is not None:
        model.set_novel_share(share)
    return model


@torch.no_grad()
def answers(loaded: Loaded, features: Tensor, question: Question) -> list[Answer]:
    """What a model says of features ``[n, D]``."""
    found = loaded.asked(question).predictions(features.numpy(), question.top)
    PREDICTIONS.inc(len(found))
    near: list[tuple[tuple[str, float], ...]] = [()] * len(found)
    if question.nearest and len(loaded.placed):
        cosines = loaded.model.base.in_space(features) @ loaded.vectors.T
        best = cosines.topk(min(question.nearest, cosines.shape[1]), dim=1)
        pictures = list(loaded.placed)
        near = [
            tuple((pictures[i], value) for i, value in zip(some, values, strict=True))
            for some, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return [Answer(loaded, *parts) for parts in zip(found, near, features, strict=True)]
