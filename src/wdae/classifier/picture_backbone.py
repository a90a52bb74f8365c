"""From pictures to features with the backbone that belongs to a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank.embedded import ASSETS
from wdae.errors import DataError, ModelError, nearest
from wdae.storage.trust import Trust

if TYPE_CHECKING:
    from wdae.backbones import Backbone
    from wdae.data import ImageSet

THUMBNAIL = 64
"""Side of the small pictures that a model keeps of its examples."""

_FEW = 64  # pictures that are not worth starting processes for
EMBEDDED = "embedded"
BACKBONE = ASSETS / "resnet12"
_SHIPPED = ("backbone", "backbone_options", "image_size", "mean", "std", "weights_sha256")


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
        card: ``backbone`` (a name of the registry), ``backbone_options``, ``image_size``, ``mean``, ``std``;
            ``class_names`` where it is known what it was trained on.
        tensors: its weights, or None for the one that ships with the package, which is not copied.
        trust: a backbone of others (``pkg.module:factory``) that the card may name.

    >>> from wdae.backbones import build
    >>> PictureBackbone.of(build("conv4-64", image_size=16), "conv4-64", {"image_size": 16})
    PictureBackbone('conv4-64', 16 px to 64 features)
    """

    card: dict[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    trust: Trust = ()

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

    @property
    def mean(self) -> tuple[float, ...]:
        """What is taken off each colour (RGB from 0 to 1) before the backbone sees it."""
        return tuple(self.card["mean"])

    @property
    def std(self) -> tuple[float, ...]:
        """What each colour is divided by then."""
        return tuple(self.card["std"])

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
        facts = {
            "backbone": name,
            "backbone_options": dict(options),
            "image_size": backbone.image_size,
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        }
        weights = {key: value.detach().cpu() for key, value in backbone.state_dict().items()}
        made = cls(facts | card, weights)
        made.__dict__["network"] = backbone.cpu().eval()
        return made

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
            raise ModelError(f"the model's weights do not fit backbone {self.name!r}: {error}") from error
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
        from wdae.data import AugmentConfig, CentralSquare, stream
        from wdae.data.augment import prepare

        size = self.image_size
        config = AugmentConfig(size=size, mean=tuple(self.card["mean"]), std=tuple(self.card["std"]))
        workers = 0 if len(images if rows is None else rows) <= _FEW else workers
        square = CentralSquare(size)
        for piece in stream(images, square, batch, workers, rows=rows, skip_broken=skip_broken):
            with torch.no_grad():
                features = self.network(prepare(piece.images, config)).float()
            yield Embedded(piece.rows, features, _thumbnails(piece.images))


def embedded_backbone() -> PictureBackbone:
    """A small ResNet-12 of our own, trained on MiniImageNet's 64 base classes: pictures in, features out.

    ``embedded_backbone().features(["a.jpg", "b.jpg"])`` are vectors for :class:`wdae.FewShotClassifier`;
    ``network`` is the torch module. Its model card is ``assets/resnet12/README.md``.

    >>> backbone = embedded_backbone()
    >>> backbone.image_size, backbone.dim, len(backbone.class_names), backbone.class_names[:2]
    (84, 400, 64, ('house finch', 'robin'))
    """
    from wdae.stage1.model_file import WEIGHTS, load_model
    from wdae.storage.files import sha256

    if not (BACKBONE / WEIGHTS).is_file():
        raise ModelError(
            "this copy of wdae has no backbone inside; give timm:NAME or a folder of wdae pretrain, or train"
            " one on your pictures with --train NAME"
        )
    trained = load_model(BACKBONE)
    known = {key: trained.card[key] for key in ("image_size", "mean", "std", "class_names")}
    return PictureBackbone.of(
        trained.network.backbone, EMBEDDED, {}, **known, weights_sha256=sha256(BACKBONE / WEIGHTS)
    )


def load_backbone(
    name: str, options: Mapping[str, Any] | None = None, *, trust: Trust = ()
) -> PictureBackbone:
    """A frozen backbone: ``embedded``, ``pkg.module:factory``, ``timm:NAME``, or a stage-1 model.

    Args:
        name: one of those; the last is the folder that ``wdae pretrain`` wrote (or its run, or its file).
        options: keyword arguments of a factory.

    >>> backbone = load_backbone("embedded")
    >>> backbone.dim, backbone.image_size
    (400, 84)
    """
    from wdae import backbones

    if name == EMBEDDED:
        shipped = embedded_backbone()
        return PictureBackbone({key: shipped.card[key] for key in _SHIPPED})
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
            f"unknown backbone {name!r}{nearest(name, [EMBEDDED, *backbones.names()])} (or give timm:NAME,"
            " pkg.module:factory, or a folder of wdae pretrain)"
        )
    built = backbones.build(name, **dict(options or {}))
    return PictureBackbone.of(built, name, options or {})


def of_stage1(folder: Path, trust: Trust = ()) -> PictureBackbone:
    """The backbone of a stage-1 model."""
    from wdae.stage1.model_file import load_model

    trained = load_model(folder, trust=trust)
    card = {key: trained.card[key] for key in ("image_size", "mean", "std")}
    return PictureBackbone.of(
        trained.network.backbone, trained.card["backbone"], trained.card["backbone_options"], **card
    )


def files_as_set(files: Sequence[str | Path], name: str = "pictures") -> ImageSet:
    """Loose picture files as a set of one unnamed class."""
    from wdae.data import FileSource, ImageSet

    missing = [str(file) for file in files if not Path(file).is_file()]
    if missing:
        others = f"; nor do {len(missing) - 1} others" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]} does not exist or is no file{others}")
    zeros = np.zeros(len(files), dtype=np.int64)
    return ImageSet(name, FileSource(tuple(map(str, files))), zeros, zeros.astype(np.uint8), ("?",))


def _thumbnails(images: Tensor) -> Tensor:
    side = min(THUMBNAIL, images.shape[-1])
    small = F.interpolate(images.float(), size=(side, side), mode="area")
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
