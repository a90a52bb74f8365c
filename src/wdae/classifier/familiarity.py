"""Whether a model knows what it is shown."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.calibration.unknown import Added, Detector
from wdae.classifier.model import Head, Model
from wdae.errors import RecipeError


def is_unknown(model: Model, head: Head, features: Tensor, scores: Tensor, false_alarms: float) -> Tensor:
    """Which of the features ``[M, D]`` resemble none of the classes in question, ``[M]``.

    Args:
        head: the classes in question (:meth:`wdae.classifier.Model.head_for`).
        scores: what it gives the features ``[M, C]``; older models, which have no detector, go by the best.
        false_alarms: share of pictures of known classes that may be called unknown wrongly; 0: none ever is.
    """
    detector = model.base.detector
    if detector is None:
        return head.familiarity(scores) < model.base.calibration.threshold(false_alarms)
    if not 0 <= false_alarms <= 1:
        raise RecipeError(f"a false-alarm rate lies between 0 and 1, got {false_alarms}")
    names = set(head.names)
    base = torch.tensor([i for i, name in enumerate(model.base.names) if name in names], dtype=torch.int64)
    added = _added(model, detector, [name for name in model.added if name in names])
    threshold = detector.threshold(false_alarms, [int(k) for k in added.shots.tolist()])
    return detector.familiarity(features, added, None if len(base) == len(model.base.names) else base) < (
        threshold
    )


def _added(model: Model, detector: Detector, names: list[str]) -> Added:
    """Added classes as the detector knows them; kept with the model as long as they have these examples."""
    state = model.state
    rows = tuple(state[name] for name in names)
    if model.known is None or model.known[0] != rows:
        examples = [torch.stack([e.feature for e in model.examples_of(name)]) for name in names]
        model.known = (rows, detector.added(examples))
    return model.known[1]
