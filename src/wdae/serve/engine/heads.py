"""Fitted classifiers of large models, kept in the database: who opens such a model need not fit it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from sqlalchemy.exc import SQLAlchemyError
from torch import Tensor

from wdae.calibration.unknown import Added
from wdae.classifier.head import Head
from wdae.classifier.light.folder import COMPUTED
from wdae.classifier.model import Model
from wdae.serve.database.connection import Database
from wdae.serve.database.revisions import model_row
from wdae.serve.database.tables import HeadRow
from wdae.version import __version__

WORTH = 500
"""Examples from which on a classifier is kept: fitting fewer takes no time."""
_PARTS = ("added", "gains", "offsets", "estimates", "shots", "steps", "prior")
_KNOWN = ("means", "shots", "ordinary", "profiles")


def fitted(
    database: Database, model: str, revision: int, starting: str, placed: Mapping[str, str], made: Model
) -> None:
    """Give a model of many examples its classifier: the one that was kept for this state, or a new one.

    Args:
        placed: the pictures that are examples, and the ids of their classes.
        made: the model that these give.
    """
    if len(placed) < WORTH or made.base.index is not None:
        return
    made_of = [__version__, COMPUTED, starting, list(made.names), list(placed.items())]
    made_of.append(made.history.novel_share())
    state = hashlib.sha256(json.dumps(made_of).encode()).digest()
    with database.reading() as session:
        row = session.get(HeadRow, model)
        found = None if row is None or row.digest != _digest(state, row.content) else row.content
    if found is not None:
        _take(made, load(found))
        return
    content = save(_tensors(made))
    try:
        with database.writing() as session:
            # Of an earlier state there may be pictures that have been deleted for good.
            if model_row(session, model, lock=True).revision == revision:
                session.merge(HeadRow(model=model, digest=_digest(state, content), content=content))
    except SQLAlchemyError:  # a full disk: then it is fitted again next time
        return


def _digest(state: bytes, content: bytes) -> str:
    return hashlib.sha256(state + content).hexdigest()


def _tensors(model: Model) -> dict[str, Tensor]:
    head, base = model.head, model.base
    tensors = {name: getattr(head, name) for name in _PARTS}
    if head.base is not base.weights:
        tensors["base"] = head.base
    if base.detector is not None and model.added:
        groups = [torch.stack([one.feature for one in model.examples_of(name)]) for name in model.added]
        model.known = _rows(model), base.detector.added(groups)
        tensors |= {f"known/{name}": getattr(model.known[1], name) for name in _KNOWN}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _take(model: Model, kept: dict[str, Tensor]) -> None:
    base = model.base
    added, gains, offsets, estimates, shots, steps, prior = (kept[name] for name in _PARTS)
    weights, n_base = kept.get("base", base.weights), len(base.names)
    refined = (model.names, n_base, weights, added, gains, offsets, base.weights, estimates)
    model.adopt(Head(*refined, shots, steps, prior, base.space))
    if "known/means" in kept:
        model.known = _rows(model), Added(**{name: kept[f"known/{name}"] for name in _KNOWN})


def _rows(model: Model) -> tuple[tuple[int, ...], ...]:
    state = model.state
    return tuple(state[name] for name in model.added)
