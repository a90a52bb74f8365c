"""What a model's folder says of it, read without torch and numpy: for commands that compute nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from wdae.classifier.history import History, State
from wdae.classifier.light.manifest import BASE, BASE_1, METHOD, ModelManifest, names_in
from wdae.classifier.names import chosen, removable
from wdae.errors import StorageError
from wdae.methods.records import CalibrationRecord, EstimateState, WdaeState
from wdae.storage import manifest as manifests
from wdae.storage.lock import PATIENCE, alone
from wdae.storage.records import construct, parse

UNKNOWN = "unknown/"
"""Before the names of the detector's arrays, in the file of the base classes."""


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """A model as its files have it: what it knows.

    ``light.folder`` has what it answers, ``wdae.classifier.load`` gives the whole of it, to be changed.
    """

    path: Path
    manifest: ModelManifest

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Self:
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
        if self.manifest.version_1 is not None:
            return None
        text, file = self._listed(METHOD)[1].get("state", ""), self.path / METHOD
        state = parse(text.encode(), file)
        if isinstance(state, dict) and state.get("kind") == "wdae":
            return construct(WdaeState, text, file)
        return construct(EstimateState, text, file)

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
    def _base(self) -> dict[str, Any]:
        return self._arrays(self._base_file)[0]

    @property
    def _base_file(self) -> str:
        return BASE if self.manifest.version_1 is None else BASE_1

    @cached_property
    def detects(self) -> bool:
        """Whether it has a detector of the unknown."""
        return any(name.startswith(UNKNOWN) for name in self._listed(self._base_file)[0])

    def _arrays(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        return manifests.read_arrays(self.path, self.manifest, name, verify=False)  # checked when opened

    def _listed(self, name: str) -> tuple[list[str], dict[str, str]]:
        return manifests.read_names(self.path, self.manifest, name)

    def chosen(self, only: str | Iterable[str]) -> list[str]:
        """The classes that come into question: names, ``added`` or ``base``."""
        return chosen(only, self.base_names, self.added)

    def remove(self, names: Iterable[str]) -> Self:
        """Take added classes out, and keep that; the folder is to be held alone meanwhile."""
        gone = removable(names, set(self.base_names), self.added)
        content = self.manifest.model_dump(mode="json", exclude_unset=True)
        for key in ("format", "version", "written_by", "sha256"):
            content.pop(key, None)
        content["history"] = self.history.extended("remove", {}, gone).as_json()
        manifests.write(ModelManifest, self.path, content, version=self.manifest.version)
        return type(self)(self.path, manifests.read(ModelManifest, self.path))


def remove_classes(path: str | Path, names: Iterable[str], patience: float = PATIENCE) -> ModelFacts:
    """Take added classes out of the model in ``path``; nothing is computed for it."""
    folder = Path(path)
    manifests.read(ModelManifest, folder)  # a lock file would be left in a folder that is no model
    with alone(folder, patience):
        return ModelFacts.open(folder).remove(names)
