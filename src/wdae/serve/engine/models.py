"""Models in memory, each at the revision that the database has, and one backbone run for many requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from sqlalchemy import select
from torch import Tensor

from wdae.classifier.light.answers import Answers
from wdae.classifier.model import Model
from wdae.classifier.names import chosen
from wdae.classifier.predictions import Prediction, TorchAnswers, answers_of
from wdae.data.decode import Pixels
from wdae.nn.cosine import unit
from wdae.runtime.process import available_cores
from wdae.serve.database.connection import Database, chunks
from wdae.serve.database.revisions import alive, latest, names_at
from wdae.serve.database.tables import FeatureRow, Placement, Revision
from wdae.serve.engine.batching import Batcher
from wdae.serve.engine.heads import fitted
from wdae.serve.engine.starting import Starting, StartingModels
from wdae.serve.observe import BATCH, PREDICTIONS
from wdae.serve.schemas import ClassInsight
from wdae.serve.uploads import DecodedPicture

_MOST_MODELS = 16
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
        return self.compared(self.features)

    def compared(self, features: Tensor) -> Tensor:
        """Features in the space that the model compares in, unit rows."""
        space = self.model.base.space
        return unit(features) if space is None else space.features(features)


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


@dataclass(frozen=True, eq=False)
class _Item:
    picture: DecodedPicture
    model: str | None = None
    question: Question = Question()


_Result = Answer | tuple[DecodedPicture, Tensor]


class Engine:
    """Answers questions about pictures: a batch on each core at a time, which takes less than one on all.

    Args:
        readers: pictures that are decoded at a time.
    """

    def __init__(self, database: Database, starting: StartingModels, readers: int = 1) -> None:
        self.database, self.starting = database, starting
        self._models: OrderedDict[str, Loaded] = OrderedDict()
        self._loading: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._batchers: dict[str, Batcher[_Item, _Result]] = {}
        self._threads = available_cores()
        # While some compute, for one backbone or two, others wait for pictures that are being decoded.
        count = 2 * self._threads + readers
        self._executor = ThreadPoolExecutor(count, "engine", torch.set_num_threads, (1,))

    def close(self) -> None:
        """Let the backbone's threads end."""
        self._executor.shutdown(cancel_futures=True)

    def current(self, model: str) -> Loaded:
        """The model as the database has it now; read again only where it has changed."""
        revision, digest = latest(self.database, model)
        with self._lock:
            found = self._models.get(model)
            if found is not None and found.revision == revision:
                self._models.move_to_end(model)
                return found
            lock = self._loading.setdefault(model, threading.Lock())
        with lock:
            with self._lock:
                found = self._models.get(model)
            if found is None or found.revision < revision:
                found = self._load(model, revision, self.starting.get(digest), found)
                with self._lock:
                    self._models[model] = found
                    self._models.move_to_end(model)
                    while len(self._models) > _MOST_MODELS:
                        self._loading.pop(self._models.popitem(last=False)[0], None)
            return found

    def in_memory(self, model: str) -> Loaded | None:
        """The model if it is in memory, perhaps of an earlier revision."""
        return self._models.get(model)

    def forget(self, model: str) -> None:
        """Drop a model that is no more."""
        with self._lock:
            self._models.pop(model, None)

    def _load(self, model: str, revision: int, starting: Starting, old: Loaded | None) -> Loaded:
        dim = starting.model.base.dim
        with self.database.reading() as session:
            names = names_at(session, model, revision)
            placed = {
                picture: class_id
                for picture, class_id in session.execute(
                    select(Placement.picture, Placement.class_id)
                    .where(alive(Placement, model, revision))
                    .order_by(Placement.id)
                )
                if class_id in names
            }
            made = session.get(Revision, (model, revision))
            share = made.novel_share if made else None
            rows = {picture: i for i, picture in enumerate(old.placed)} if old else {}
            vectors = np.empty((len(placed), dim), np.float32)
            wanted = select(FeatureRow.picture, FeatureRow.vector).where(
                FeatureRow.model == model, FeatureRow.backbone == starting.backbone_digest
            )
            missing = [picture for picture in placed if picture not in rows]
            found: dict[str, bytes] = {}
            if len(missing) > 1000 and len(missing) > len(placed) // 2:
                found = {row[0]: row[1] for row in session.execute(wanted)}
            else:
                for some in chunks(missing):
                    rest = session.execute(wanted.where(FeatureRow.picture.in_(some)))
                    found |= {row[0]: row[1] for row in rest}
        placed = {picture: c for picture, c in placed.items() if picture in rows or picture in found}
        vectors = vectors[: len(placed)]
        for i, picture in enumerate(placed):
            if picture in rows:
                assert old is not None
                vectors[i] = old.features[rows[picture]]
            else:
                vectors[i] = np.frombuffer(found[picture], np.float32)
        features = torch.from_numpy(vectors)
        whole = built(starting, names, placed, features, share)
        fitted(self.database, model, revision, starting.digest, placed, whole)
        return Loaded(model, revision, starting, whole, names, placed, features)

    async def features(
        self, starting: Starting, read: Callable[[], DecodedPicture]
    ) -> tuple[DecodedPicture, Tensor]:
        """A picture and its feature ``[D]``; a function reads it, in a thread."""
        found = await self._batcher(starting)(lambda: _Item(read()))
        assert not isinstance(found, Answer)
        return found

    async def answer(
        self, starting: Starting, model: str, read: Callable[[], DecodedPicture], question: Question
    ) -> Answer:
        """What a model says of a picture; pictures that arrive together pass the backbone together."""
        found = await self._batcher(starting)(lambda: _Item(read(), model, question))
        assert isinstance(found, Answer)
        return found

    def _batcher(self, starting: Starting) -> Batcher[_Item, _Result]:
        key = starting.backbone_digest
        if key not in self._batchers:
            self._batchers[key] = Batcher(
                lambda items: self._work(starting, items), self._executor, self._threads
            )
        return self._batchers[key]

    def _work(self, starting: Starting, items: Sequence[_Item]) -> list[_Result | BaseException]:
        features = embedded(starting, [item.picture.pixels for item in items])
        BATCH.observe(len(items))
        results: list[_Result | BaseException] = [
            (item.picture, feature) for item, feature in zip(items, features, strict=True)
        ]
        groups: dict[tuple[str, Question], list[int]] = {}
        for i, item in enumerate(items):
            if item.model is not None:
                groups.setdefault((item.model, item.question), []).append(i)
        for (model, question), rows in groups.items():
            try:
                for i, answer in zip(
                    rows, answers(self.current(model), features[rows], question), strict=True
                ):
                    results[i] = answer
            except Exception as error:  # theirs alone, not of the others in the batch
                for i in rows:
                    results[i] = error
        return results


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
        cosines = loaded.compared(features) @ loaded.vectors.T
        best = cosines.topk(min(question.nearest, cosines.shape[1]), dim=1)
        pictures = list(loaded.placed)
        near = [
            tuple((pictures[i], value) for i, value in zip(some, values, strict=True))
            for some, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return [Answer(loaded, *parts) for parts in zip(found, near, features, strict=True)]
