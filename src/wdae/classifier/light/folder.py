"""A model's folder, read without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from wdae.backbones.graphs import ASSETS, GraphBackbone, start
from wdae.backbones.preprocessing import Preprocessing
from wdae.calibration.familiarity import Array, Familiarity, check_kept
from wdae.classifier.history import History, State
from wdae.classifier.light.answers import Answers, Space
from wdae.classifier.light.manifest import BACKBONE, BASE, BASE_1, METHOD, ModelManifest, names_in
from wdae.classifier.names import chosen, removable
from wdae.errors import StorageError
from wdae.methods.records import CalibrationRecord, EstimateState, WdaeState
from wdae.storage import manifest as manifests
from wdae.storage.files import open_regular, sha256
from wdae.storage.lock import PATIENCE, alone
from wdae.storage.records import construct, parse, read_json
from wdae.storage.tensors import arrays_in
from wdae.version import __version__

EMBEDDED = "embedded"
SHIPPED = ASSETS / "resnet12"
"""The backbone of this package."""
UNKNOWN = "unknown/"
"""Before the names of the detector's arrays, in the file of the base classes."""
HEAD = "head-"
"""What the names of files begin with that keep the classifier of a state."""


def head_file(state: State, novel_share: float | None) -> str:
    """The file that keeps the classifier of a state, computed by this version.

    >>> head_file({"okapi": (0, 1)}, None) == head_file({"okapi": (0, 1)}, 0.5)
    False
    """
    said = json.dumps([__version__, [[name, list(rows)] for name, rows in state.items()], novel_share])
    return f"{HEAD}{hashlib.sha256(said.encode()).hexdigest()[:16]}.safetensors"


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """A model as its files have it: what it knows, and what it answers where that was computed before.

    ``wdae.classifier.load`` gives the whole of it, to be changed.
    """

    path: Path
    manifest: ModelManifest

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> ModelFolder:
        """Read the manifest in folder ``path``, and check the files that it lists."""
        manifest = manifests.read(ModelManifest, path)
        manifests.check_files(path, manifest, verify=verify)
        opened = cls(Path(path), manifest)
        _ = opened.history
        return opened

    @cached_property
    def history(self) -> History:
        """All changes."""
        n_rows = sum(block.rows for block in self.manifest.examples)
        return History.from_json(self.manifest.history.model_dump(mode="json"), n_rows)

    @cached_property
    def state(self) -> State:
        """Classes that were added to, and the rows of their examples."""
        return self.history.state()

    @cached_property
    def base_names(self) -> tuple[str, ...]:
        """The base classes."""
        if self.manifest.index is None:
            return self.manifest.base_classes
        try:
            return names_in(self._base["names"])
        except (KeyError, ValueError) as error:
            raise StorageError(f"{self.path} is altered: {error!r}; copy the model again") from error

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The classes that are not base classes, in the order in which they came."""
        base = set(self.base_names)
        return tuple(name for name in self.state if name not in base)

    @property
    def names(self) -> tuple[str, ...]:
        """All classes, base first."""
        return (*self.base_names, *self.added)

    def shots(self, name: str) -> int:
        """Number of examples that a class was given since the model was learned."""
        return len(self.state.get(name, ()))

    @property
    def card(self) -> dict[str, Any] | None:
        """What is said of the backbone."""
        kept = self.manifest.backbone
        return None if kept is None else kept.model_dump(mode="json", exclude_unset=True)

    @cached_property
    def method(self) -> WdaeState | EstimateState | None:
        """What the method's file says; None in a model of version 1."""
        return None if self.manifest.version_1 is not None else self._method[1]

    @cached_property
    def _method(self) -> tuple[dict[str, Array], WdaeState | EstimateState]:
        arrays, metadata = self._arrays(METHOD)
        text, file = metadata.get("state", ""), self.path / METHOD
        state = parse(text.encode(), file)
        if isinstance(state, dict) and state.get("kind") == "wdae":
            return arrays, construct(WdaeState, text, file)
        return arrays, construct(EstimateState, text, file)

    @cached_property
    def calibration(self) -> CalibrationRecord:
        """From cosines to scores whose softmax is a probability."""
        old, method = self.manifest.version_1, self.method
        kept = old.calibration if old is not None else method.balance if method is not None else None
        return kept or CalibrationRecord(
            gain=self.manifest.scale, slopes={}, offsets={}, familiarity=(), figures={}, novel_share=0.5
        )

    @property
    def steps(self) -> dict[int, float] | None:
        """ε by number of shots; None without a denoiser."""
        old, method = self.manifest.version_1, self.method
        if old is not None:
            return None if old.denoiser is None else dict(old.denoiser.steps)
        return dict(method.steps) if isinstance(method, WdaeState) else None

    @property
    def refines_base(self) -> bool:
        """Whether base weights move when classes are added."""
        old, method = self.manifest.version_1, self.method
        if old is not None:
            return old.denoiser is not None and old.refine_base
        return isinstance(method, WdaeState) and method.refine_base

    @property
    def novel_share(self) -> float | None:
        """The share that was set, here or when the model was learned; None: what base classes can bear."""
        own = self.calibration
        return self.history.novel_share() or (own.novel_share if own.offsets else None)

    @cached_property
    def _base(self) -> dict[str, Array]:
        return self._arrays(BASE if self.manifest.version_1 is None else BASE_1)[0]

    @property
    def detects(self) -> bool:
        """Whether it has a detector of the unknown."""
        return any(name.startswith(UNKNOWN) for name in self._base)

    def _arrays(self, name: str) -> tuple[dict[str, Array], dict[str, str]]:
        return manifests.read_arrays(self.path, self.manifest, name, verify=False)  # checked when opened

    def chosen(self, only: str | Iterable[str]) -> list[str]:
        """The classes that come into question: names, ``added`` or ``base``."""
        return chosen(only, self.base_names, self.added)

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

    def _answers(self, head: Mapping[str, Array]) -> Answers:
        n_base, n_added, dim = len(self.base_names), len(self.added), self.manifest.dim
        space, method = None, self.method
        if isinstance(method, WdaeState) and method.space is not None:
            arrays = self._method[0]
            whiten = arrays["space.whiten"] if method.space.shrink < 1 else None
            space = Space(method.space.power, arrays["space.centre"], whiten)
            _check(space.centre, (dim,))
            _check(np.zeros((dim, dim)) if whiten is None else whiten, (dim, dim))
        base = self._base["weights"] if space is None else self._method[0]["space.weights"]
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

    def remove(self, names: Iterable[str]) -> ModelFolder:
        """Take added classes out, and keep that; the folder is to be held alone meanwhile."""
        gone = removable(names, set(self.base_names), self.added)
        content = self.manifest.model_dump(mode="json", exclude_unset=True)
        for key in ("format", "version", "written_by", "sha256"):
            content.pop(key, None)
        content["history"] = self.history.extended("remove", {}, gone).as_json()
        manifests.write(ModelManifest, self.path, content, version=self.manifest.version)
        return ModelFolder(self.path, manifests.read(ModelManifest, self.path))


def remove_classes(path: str | Path, names: Iterable[str], patience: float = PATIENCE) -> ModelFolder:
    """Take added classes out of the model in ``path``; nothing is computed for it."""
    folder = Path(path)
    manifests.read(ModelManifest, folder)  # a lock file would be left in a folder that is no model
    with alone(folder, patience):
        return ModelFolder.open(folder).remove(names)


def _shipped(digest: str | None, rule: Preprocessing) -> GraphBackbone | None:
    """The backbone of this package; None where the model was learned with one that shipped before."""
    file = SHIPPED / "model.safetensors"
    if not file.is_file() or sha256(file) != digest:
        return None
    card = read_json(SHIPPED / "model.json")
    with open_regular(file) as opened:
        arrays, _ = arrays_in(opened, file)
    own = "backbone."
    weights = {name.removeprefix(own): one for name, one in arrays.items() if name.startswith(own)}
    return start(card["backbone"], card["backbone_options"], weights, rule)


def _check(array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError(f"an array of shape {list(array.shape)} for {list(shape)}")
