"""A model's folder, read without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from wdae.backbones.graphs import GraphBackbone, start
from wdae.backbones.preprocessing import Preprocessing
from wdae.calibration.familiarity import Array, Familiarity, check_kept
from wdae.classifier.history import State
from wdae.classifier.light.answers import Answers, Space
from wdae.classifier.light.facts import UNKNOWN, ModelFacts
from wdae.classifier.light.manifest import BACKBONE, METHOD
from wdae.config.shipped import EMBEDDED, EMBEDDED_BACKBONE
from wdae.errors import StorageError
from wdae.methods.records import WdaeState
from wdae.storage.files import open_regular, sha256
from wdae.storage.records import read_json
from wdae.storage.tensors import arrays_in
from wdae.version import __version__

HEAD = "head-"
"""What the names of files begin with that keep the classifier of a state."""
COMPUTED = 2
"""Changes with what is computed of a state: what an earlier one has kept is then computed again."""


def head_file(state: State, novel_share: float | None) -> str:
    """The file that keeps the classifier of a state, computed by this version.

    >>> head_file({"okapi": (0, 1)}, None) == head_file({"okapi": (0, 1)}, 0.5)
    False
    """
    content = json.dumps(
        [__version__, COMPUTED, [[name, list(rows)] for name, rows in state.items()], novel_share]
    )
    return f"{HEAD}{hashlib.sha256(content.encode()).hexdigest()[:16]}.safetensors"


class ModelFolder(ModelFacts):
    """A model as its files have it: what it knows, and what it answers where that was computed before."""

    @property
    def has_answers(self) -> bool:
        """Whether what it answers now is known: nothing was added, or it was computed before."""
        if self.manifest.index is not None:
            return False  # what an index finds is scored by torch
        return not self.state or self._head_file in self.manifest.files

    @property
    def _head_file(self) -> str:
        return head_file(self.state, self.history.novel_share())

    def answers(self, head: Mapping[str, Array] | None = None) -> Answers:
        """The classifier of the present state.

        Args:
            head: what was computed for it; only where :attr:`has_answers` it is found in the folder.
        """
        try:
            if head is None:
                head = self._arrays(self._head_file)[0] if self.state else {}
            return self._answers(head)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StorageError(f"{self.path} is altered: {error!r}; copy the model again") from error

    @cached_property
    def _method(self) -> dict[str, Array]:
        return self._arrays(METHOD)[0]

    def _answers(self, head: Mapping[str, Array]) -> Answers:
        n_base, n_added, dim = len(self.base_names), len(self.added), self.manifest.dim
        space, method = None, self.method
        if isinstance(method, WdaeState) and method.space is not None:
            arrays = self._method
            whiten = arrays["space.whiten"] if method.space.shrink < 1 else None
            space = Space(method.space.power, arrays["space.centre"], whiten)
            _check(space.centre, (dim,))
            _check(np.zeros((dim, dim)) if whiten is None else whiten, (dim, dim))
        base = self._base["weights"] if space is None else self._method["space.weights"]
        _check(base, (n_base, dim))
        weights = np.concatenate([base.astype(np.float32), np.zeros((n_added, dim), np.float32)])
        gains, offsets = np.full(n_base, self.calibration.gain, np.float32), np.zeros(n_base, np.float32)
        prior = np.zeros(0, np.float32)
        if head:
            rows = head["rows"]
            _check(head["weights"], (len(rows), dim))
            weights[rows] = head["weights"]
            gains, offsets, prior = head["gains"], head["offsets"], head["prior"]
            for array, count in ((gains, n_base + n_added), (offsets, n_base + n_added), (prior, n_added)):
                _check(array, (count,))
        curve = tuple(self.calibration.familiarity)
        matrix = weights * gains[:, None]
        known = self._familiarity(head)
        return Answers(self.names, n_base, matrix, offsets, prior, space, curve, known)

    def _familiarity(self, head: Mapping[str, Array]) -> Familiarity | None:
        if not self.detects:
            return None
        kept = {
            name.removeprefix(UNKNOWN): array.astype(np.float32) if array.dtype == np.float16 else array
            for name, array in self._base.items()
            if name.startswith(UNKNOWN)
        }
        n_base, n_added, dim = len(self.base_names), len(self.added), self.manifest.dim
        check_kept(kept, n_base, dim)
        means, ordinary = np.zeros((0, dim), np.float32), np.zeros(0, np.float32)
        if n_added:
            means, ordinary = head["known/means"], head["known/ordinary"]
        _check(means, (n_added, dim))
        _check(ordinary, (n_added,))
        shots = np.array([self.shots(name) for name in self.added], np.int64)
        base_profiles, profiles = kept.get("profiles"), None
        if base_profiles is not None and n_added:
            profiles = head["known/profiles"]
            _check(profiles, (n_added, base_profiles.shape[1]))
        return Familiarity(
            kept, kept["means"], kept["counts"], means, shots, ordinary, base_profiles, profiles
        )

    def backbone(self) -> GraphBackbone | None:
        """The backbone, running; None where it runs in torch alone."""
        card = self.manifest.backbone
        if card is None:
            return None
        rule = Preprocessing.of(card.model_dump())
        if BACKBONE in self.manifest.files:
            weights, _ = self._arrays(BACKBONE)
            return start(card.backbone, card.backbone_options, weights, rule)
        if card.backbone != EMBEDDED:
            return None
        return _shipped(card.weights_sha256, rule)


def _shipped(digest: str | None, rule: Preprocessing) -> GraphBackbone | None:
    """The backbone of this package; None where the model was learned with one that shipped before."""
    file = EMBEDDED_BACKBONE / "model.safetensors"
    if not file.is_file() or sha256(file) != digest:
        return None
    card = read_json(EMBEDDED_BACKBONE / "model.json")
    with open_regular(file) as opened:
        arrays, _ = arrays_in(opened, file)
    own = "backbone."
    weights = {name.removeprefix(own): one for name, one in arrays.items() if name.startswith(own)}
    return start(card["backbone"], card["backbone_options"], weights, rule)


def _check(array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError(f"an array of shape {list(array.shape)} for {list(shape)}")
