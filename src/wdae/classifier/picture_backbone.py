"""From pictures to features with the backbone that belongs to a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.config.shipped import EMBEDDED, EMBEDDED_BACKBONE
from wdae.errors import DataError, ModelError, nearest
from wdae.storage.trust import Trust, trusting

if TYPE_CHECKING:
    from wdae.backbones import Backbone
    from wdae.backbones.preprocessing import Preprocessing
    from wdae.data import ImageSet

THUMBNAIL = 64
"""Side of the small pictures that a model keeps of its examples."""

BACKBONE = EMBEDDED_BACKBONE
_FEW = 64  # pictures that are not worth starting processes for


@dataclass(frozen=True, eq=False)
class Embedded:
    """Some pictures: their numbers in the set ``[B]``, features ``[B, D]``, thumbnails ``[B, S, S, 3]``."""

    rows: Tensor
    features: Tensor
    thumbnails: Tensor


@dataclass(frozen=True, eq=False)
class PictureBackbone:
    """A backbone with how pictures are prepared for it.

    Args:
        card: ``backbone`` (a name of the registry), ``backbone_options``, the fields of
            :class:`~wdae.backbones.preprocessing.Preprocessing`; ``class_names`` where it is known what it
            was trained on.
        tensors: its weights, or None for the one that ships with the package, which is not copied.
        trust: a backbone of others (``pkg.module:factory``) that the card may name.
        device: where it computes; ``auto``: on a GPU if there is one.

    >>> from wdae.backbones import build
    >>> PictureBackbone.of(build("conv4-64", image_size=16), "conv4-64", {"image_size": 16})
    PictureBackbone('conv4-64', 16 px to 64 features)
    """

    card: dict[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    trust: Trust = ()
    device: str = "cpu"

    def __repr__(self) -> str:
        return f"PictureBackbone({self.name!r}, {self.image_size} px to {self.dim} features)"

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.card["backbone"])

    @property
    def image_size(self) -> int:
        """Side S of the pictures it takes."""
        return int(self.card["image_size"])

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How it wants its pictures."""
        from wdae.backbones.preprocessing import Preprocessing

        return Preprocessing.of(self.card)

    @property
    def mean(self) -> tuple[float, ...]:
        """What is taken off each colour before the backbone sees it."""
        return self.preprocessing.mean

    @property
    def std(self) -> tuple[float, ...]:
        """What each colour is divided by then."""
        return self.preprocessing.std

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that it was trained on, where that is known."""
        return tuple(self.card.get("class_names", ()))

    @property
    def dim(self) -> int:
        """Feature size D."""
        return self.network.feature_dim

    @classmethod
    def of(cls, backbone: Backbone, name: str, options: Mapping[str, Any], **card: Any) -> PictureBackbone:
        """A backbone at hand, with its weights."""
        facts = {"backbone": name, "backbone_options": dict(options), **backbone.preprocessing.facts()}
        weights = {key: value.detach().cpu() for key, value in backbone.state_dict().items()}
        made = cls(facts | card, weights)
        made.__dict__["network"] = backbone.cpu().eval()
        return made

    def on(self, device: str) -> PictureBackbone:
        """The same backbone, computing on another device."""
        return self._with(device=device)

    def seeing(self, **changes: Any) -> PictureBackbone:
        """The same backbone with pictures prepared otherwise, where something is given.

        Args:
            changes: of :meth:`wdae.backbones.preprocessing.Preprocessing.changed`: ``side``, ``mean``, ...
        """
        from wdae.backbones.preprocessing import Preprocessing

        changes = {key: value for key, value in changes.items() if value is not None}
        if not changes:
            return self
        rule = self.preprocessing.changed(**changes)
        others = {key: value for key, value in self.card.items() if key not in Preprocessing.model_fields}
        if rule.image_size != self.image_size:
            try:
                with torch.no_grad():
                    self.network(torch.zeros(1, 3, rule.image_size, rule.image_size))
            except Exception as error:  # whatever a network of others raises
                raise ModelError(
                    f"backbone {self.name} takes no pictures of {rule.image_size} px: {str(error)[:200]}"
                ) from error
        return self._with(card=others | rule.facts())

    def _with(self, **changes: Any) -> PictureBackbone:
        made = replace(self, **changes)
        if "network" in self.__dict__:
            made.__dict__["network"] = self.network
        return made

    @cached_property
    def _placed(self) -> tuple[Backbone, torch.device]:
        """The network where it computes, and the device. Ours are folded; others stay as they are."""
        from wdae.backbones.embed import folded
        from wdae.runtime.device import pick_device

        device = pick_device(self.device)
        if ":" not in self.name:
            return folded(self.network).to(device), device
        return self.network if device.type == "cpu" else copy.deepcopy(self.network).to(device), device

    @cached_property
    def network(self) -> Backbone:
        """The backbone itself, in evaluation mode on the CPU; built when first used."""
        from wdae.backbones.from_file import build_from_file

        if self.tensors is None:
            return self._shipped().network
        shapes = {key: tensor.shape for key, tensor in self.tensors.items()}
        options = self.card["backbone_options"]
        network = build_from_file(self.name, options, shapes, trust=self.trust, where="the model")
        try:
            network.load_state_dict(dict(self.tensors))
        except RuntimeError as error:
            raise ModelError(
                f"the model's weights do not fit backbone {self.name!r}: {error}; copy the model again"
            ) from error
        return network.eval()

    def _shipped(self) -> PictureBackbone:
        """The backbone of this package, if the model was learned with it; another one has shipped before."""
        shipped = embedded_backbone()
        own, now = str(self.card.get("weights_sha256", "unknown")), shipped.card["weights_sha256"]
        if own != now:
            raise ModelError(
                "the model was made with the backbone that shipped with an earlier wdae (weights"
                f" {own[:8]}, here {now[:8]}) and does not contain it: it takes features, but no pictures."
                " Learn it again and add your classes to that: wdae learn -o NEW, or wdae learn PHOTOS"
                " --backbone embedded -o NEW; with the earlier backbone's folder at hand (assets/resnet12 of"
                " the earlier wdae): wdae learn PHOTOS --backbone FOLDER -o NEW"
            )
        return shipped

    def features(self, files: Sequence[str | Path]) -> Tensor:
        """Features ``[M, D]`` of picture files, in their order; one that cannot be read is an error."""
        return torch.cat([piece.features for piece in self.embed(files_as_set(files))])

    def embed(
        self,
        images: ImageSet,
        *,
        rows: np.ndarray[Any, np.dtype[np.int64]] | None = None,
        skip_broken: bool = False,
        batch: int = 64,
        workers: int | None = None,
    ) -> Iterator[Embedded]:
        """Features of a set of pictures, a batch at a time, so that any number of them can pass.

        Args:
            rows: numbers of the pictures wanted; all by default.
            skip_broken: leave out those that cannot be read.
        """
        from wdae.backbones.embed import batch_on
        from wdae.data.stream import stream

        rule, (network, device) = self.preprocessing, self._placed
        workers = 0 if len(images if rows is None else rows) <= _FEW else workers
        batch = max(
            1, min(batch, 64 * 224**2 // rule.image_size**2)
        )  # as much memory as 64 pictures of the usual size
        for piece in stream(images, rule, batch, workers, rows=rows, skip_broken=skip_broken):
            parts = piece.images.split(batch_on(device, rule.image_size, batch))
            with torch.no_grad():
                found = [network(rule.prepare(part.to(device))).float().cpu() for part in parts]
            yield Embedded(piece.rows, torch.cat(found), _thumbnails(piece.images))


def embedded_backbone() -> PictureBackbone:
    """A small ResNet-12 of our own, trained on MiniImageNet's 64 base classes: pictures in, features out.

    ``embedded_backbone().features(["a.jpg", "b.jpg"])`` are vectors for :class:`wdae.FewShotClassifier`;
    ``network`` is the torch module. Its model card is ``assets/resnet12/README.md``.

    >>> backbone = embedded_backbone()
    >>> backbone.image_size, backbone.dim, len(backbone.class_names), backbone.class_names[:2]
    (72, 400, 64, ('house finch', 'robin'))
    """
    from wdae.backbones.preprocessing import Preprocessing
    from wdae.stage1.model_file import WEIGHTS, load_model
    from wdae.storage.files import sha256

    if not (BACKBONE / WEIGHTS).is_file():
        raise ModelError(
            "this copy of wdae has no backbone inside; give timm:NAME or a folder of wdae pretrain, or train"
            " one on your pictures with --train NAME"
        )
    trained = load_model(BACKBONE)
    known = Preprocessing.of(trained.card).facts() | {"class_names": trained.card["class_names"]}
    return PictureBackbone.of(
        trained.network.backbone, EMBEDDED, {}, **known, weights_sha256=sha256(BACKBONE / WEIGHTS)
    )


def load_backbone(
    name: str, options: Mapping[str, Any] | None = None, *, trust: Trust = (), **seeing: Any
) -> PictureBackbone:
    """A frozen backbone: ``embedded``, ``lite0``, ``timm:NAME``, ``pkg.module:factory``, a stage-1 model, ...

    Args:
        name: one of those; the last is the folder that ``wdae pretrain`` wrote (or its run, or its file).
        options: keyword arguments of a factory.
        seeing: how pictures are prepared, where it differs from what the backbone says: ``side``, ``crop``,
            ``mean``, ``std``, ``interpolation``.

    >>> backbone = load_backbone("embedded")
    >>> backbone.dim, backbone.image_size
    (400, 72)
    """
    options = dict(options or {})
    if name.startswith("onnx:"):  # which may say nothing of it itself
        options |= {"image_size": seeing.get("side"), "mean": seeing.get("mean"), "std": seeing.get("std")}
    return _load(name, options, trust).seeing(**seeing)


def _load(name: str, options: Mapping[str, Any], trust: Trust) -> PictureBackbone:
    from wdae import backbones
    from wdae.backbones.packaged import LITE, packaged

    if name in LITE:
        return PictureBackbone.of(packaged(name).backbone, LITE[name], {})
    if name == EMBEDDED:
        card = dict(embedded_backbone().card)
        del card["class_names"]
        return PictureBackbone(card)
    path = Path(name)
    for folder in (path, path / "model", path.parent):
        if (folder / "model.safetensors").is_file() and (folder / "model.json").is_file():
            return of_stage1(folder, trust)
    if name in backbones.names():
        raise ModelError(
            f"backbone {name!r} has no trained weights of its own; train it on your pictures with"
            f" --train {name}, or give embedded, timm:NAME, pkg.module:factory or a folder of wdae pretrain"
        )
    if ":" not in name and (path.exists() or "/" in name):
        raise ModelError(f"{name} holds no backbone; give a folder with model.safetensors and model.json")
    if ":" not in name:
        raise ModelError(
            f"unknown backbone {name!r}{nearest(name, [EMBEDDED, *LITE, *backbones.names()])} (or give"
            " timm:NAME, transformers:NAME, onnx:FILE, pkg.module:factory, or a folder of wdae pretrain)"
        )
    with trusting(name):  # who names a factory on a call may have it in the working folder
        built = backbones.build(name, **options)
    if name.startswith("onnx:"):
        options = {"feature_dim": built.feature_dim, "image_size": built.image_size}
        options |= {"output": built.stages[0].output}
    return PictureBackbone.of(built, name, options)


def of_stage1(folder: Path, trust: Trust = ()) -> PictureBackbone:
    """The backbone of a stage-1 model."""
    from wdae.backbones.preprocessing import Preprocessing
    from wdae.stage1.model_file import load_model

    trained = load_model(folder, trust=trust)
    card, rule = trained.card, Preprocessing.of(trained.card)
    return PictureBackbone.of(
        trained.network.backbone, card["backbone"], card["backbone_options"], **rule.facts()
    )


def files_as_set(files: Sequence[str | Path]) -> ImageSet:
    """Loose picture files as a set of one unnamed class."""
    from wdae.data import FileSource, ImageSet

    if isinstance(files, str | Path):
        raise DataError(f"picture files are a list, got one path; give [{str(files)!r}]")
    missing = [str(file) for file in files if not Path(file).is_file()]
    if missing:
        others = f"; {len(missing)} are missing in all" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]} does not exist or is no file{others}")
    zeros = np.zeros(len(files), dtype=np.int64)
    return ImageSet("pictures", FileSource(tuple(map(str, files))), zeros, zeros.astype(np.uint8), ("?",))


def _thumbnails(images: Tensor) -> Tensor:
    side = min(THUMBNAIL, images.shape[-1])
    small = F.interpolate(images.float(), size=(side, side), mode="area")
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
