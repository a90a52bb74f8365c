"""Models in memory, each at the revision that the database has, and one backbone run for many requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from sqlalchemy import select
from torch import Tensor

from wdae.runtime.process import available_cores
from wdae.serve.database.connection import Database, chunks
from wdae.serve.database.revisions import alive, latest, names_at
from wdae.serve.database.tables import FeatureRow, Placement, Revision
from wdae.serve.engine.batching import Batcher
from wdae.serve.engine.heads import fitted
from wdae.serve.engine.loaded import Answer, Loaded, Question, answers, built, embedded
from wdae.serve.engine.starting import Starting, StartingModels
from wdae.serve.observe import BATCH
from wdae.serve.uploads import DecodedPicture

_MOST_MODELS = 16


@dataclass(frozen=True, eq=False)
class _Item:
    picture: DecodedPicture
    model: str | None = None
    question: Question = field(default_factory=Question)


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
