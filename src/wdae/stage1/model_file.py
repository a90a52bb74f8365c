"""A stage-1 model as weights only: ``model.safetensors`` and ``model.json`` in one folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from wdae.backbones.from_file import build_from_file
from wdae.backbones.preprocessing import BackboneCard
from wdae.errors import ModelError, listed
from wdae.stage1.recognition_model import RecognitionModel
from wdae.storage import manifest as manifests
from wdae.storage.manifest import Manifest
from wdae.storage.records import MAX_CLASSES, ClassNames, Count, Info, Record, Text
from wdae.storage.tensors import save_tensors
from wdae.storage.trust import Trust

WEIGHTS = "model.safetensors"


class _TrainedOn(Record):
    """What is read again of a recipe's ``data``; the other keys are for people."""

    model_config = ConfigDict(extra="allow")

    reading: Literal["names", "positions"] = "names"
    classes: Literal["base", "base+validation"] = "base"
    held_out: Count = 0
    held_out_seed: Count | None = None
    stream: bool = False


class _Recipe(Record):
    model_config = ConfigDict(extra="allow")

    data: _TrainedOn = _TrainedOn()
    seed: Annotated[int, Field(ge=0)] = 0


def _listed(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Version 1 had no digests: the weights are listed as they are."""
    return {**value, "files": {WEIGHTS: manifests.entry(folder / WEIGHTS)}}


class Stage1Manifest(BackboneCard, Manifest):
    """``model.json`` of a stage-1 model. Version 2 lists its files with their digests."""

    FORMAT, VERSION, FILE, NOUN = "wdae-stage1-model", 2, "model.json", "a stage-1 model"
    REMEDY = "; make one with: wdae pretrain"
    SEALED = 2
    UPGRADES = {1: _listed}  # noqa: RUF012

    class_names: ClassNames
    class_ids: ClassNames = ()
    held_out_pictures: Annotated[dict[Text, Text], Field(max_length=MAX_CLASSES)] = {}  # noqa: RUF012
    trained_on: Any = None
    started_from: Info | None = None
    recipe: _Recipe
    figures: Info


CARD = Stage1Manifest.FILE


@dataclass(frozen=True, eq=False)
class Stage1Model:
    """A trained recognition model with what is needed to use it.

    Args:
        card: ``backbone``, ``backbone_options``, ``class_names`` (of the rows of the classifier),
            ``image_size``, ``mean``, ``std``, ``recipe``, ``figures``.
    """

    network: RecognitionModel
    card: dict[str, Any]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the base classes, in the order of the classifier's rows."""
        return tuple(self.card["class_names"])

    @property
    def class_ids(self) -> tuple[str, ...]:
        """What the data set calls them, where their names are other ones."""
        return tuple(self.card.get("class_ids") or self.card["class_names"])

    @property
    def held_out(self) -> tuple[int, int]:
        """How many images of each base class it has not learned from, and the seed that drew them."""
        recipe = self.card["recipe"]
        data = recipe.get("data", {})
        seed = data.get("held_out_seed")
        return data.get("held_out", 0), recipe.get("seed", 0) if seed is None else seed

    def refuse_leak(
        self, where: Path, held_out: int, seed: int, unseen: Collection[str] = frozenset()
    ) -> None:
        """Refuse a model that has learned from what is to be tested: held-out images, or unseen classes."""
        if seen := [name for name in dict.fromkeys((*self.class_names, *self.class_ids)) if name in unseen]:
            raise ModelError(
                f"the model in {where} has learned validation or novel classes of this data set:"
                f" {listed(map(repr, seen))}; figures on them would not be of classes that are new. Give a"
                " model of the base classes"
            )
        count, drawn = self.held_out
        if held_out and not (drawn == seed and held_out <= count):
            kept = f"{count} a class, drawn with seed {drawn}," if count else "none"
            raise ModelError(
                f"{held_out} images of each base class are held out here, drawn with seed {seed}, and the"
                f" model in {where} has learned from some of them: of its own, {kept} were held out. Give one"
                " with the same images held out (data.held-out, data.held-out-seed)"
            )

    def refuse_other_pictures(self, where: Path, drawn: Mapping[str, str]) -> None:
        """Refuse a model of which the same draw holds out other pictures here than it did in its training.

        Draws depend on all pictures: one more, or one less, changes them, and what is held out here has been
        learned from. Models of before there were digests are taken as they are.

        Args:
            drawn: :func:`wdae.data.image_set.held_out_digests` of as many images, drawn with the same seed.
        """
        kept: Mapping[str, str] = self.card.get("held_out_pictures", {})
        if other := [name for name, digest in drawn.items() if kept.get(name, digest) != digest]:
            raise ModelError(
                f"the model in {where} has learned from pictures that would be held out here, of {len(other)}"
                f" classes: {listed(map(repr, other))}; pictures were added, removed or renamed since it was"
                " trained, or other classes learn with them. Give the pictures that it was trained on, or"
                " hold none out (wdae extract --held-out 0)"
            )


def save_model(
    folder: str | Path,
    network: RecognitionModel,
    card: dict[str, Any],
    dtype: Literal["float32", "float16"] = "float32",
) -> None:
    """Write weights and card; the rotation head is not saved."""
    wanted = torch.float16 if dtype == "float16" else torch.float32
    tensors = {
        name: value.detach().to(wanted if value.is_floating_point() else value.dtype)
        for name, value in network.state_dict().items()
        if not name.startswith("turn_head.") and not name.endswith("num_batches_tracked")
    }
    write_model(folder, tensors, card)


def write_model(folder: str | Path, tensors: Mapping[str, Tensor], card: dict[str, Any]) -> None:
    """Write weights, then the card that lists them."""
    save_tensors(Path(folder) / WEIGHTS, tensors, {"format": Stage1Manifest.FORMAT})
    write_card(Path(folder), card)


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write the card of the weights that lie in a folder."""
    content = {key: value for key, value in card.items() if key not in Manifest.model_fields}
    content["files"] = {WEIGHTS: manifests.entry(folder / WEIGHTS)}
    manifests.write(Stage1Manifest, folder, content)


def load_model(folder: str | Path, device: str | torch.device = "cpu", *, trust: Trust = ()) -> Stage1Model:
    """Read a model written by :func:`save_model`, in evaluation mode and float32.

    Args:
        trust: a backbone of others (``pkg.module:factory``) that the model may name.
    """
    folder = Path(folder)
    if not (folder / CARD).is_file() or not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no stage-1 model; give a folder with {WEIGHTS} and {CARD}")
    manifest = manifests.read(Stage1Manifest, folder)
    read = manifests.read_tensors(folder, manifest, WEIGHTS)
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in read.items()}
    start = "backbone."
    shapes = {name.removeprefix(start): t.shape for name, t in tensors.items() if name.startswith(start)}
    with torch.random.fork_rng(devices=[]):
        backbone = build_from_file(
            manifest.backbone, manifest.backbone_options, shapes, trust=trust, where=folder / CARD
        )
        network = RecognitionModel(backbone, len(manifest.class_names))
    try:
        missing, unexpected = network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ModelError(
            f"{folder / WEIGHTS} does not fit backbone {manifest.backbone!r}: {error}"
        ) from error
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ModelError(
            f"{folder / WEIGHTS} does not fit backbone {manifest.backbone!r}: "
            f"{len(missing)} weights missing, {len(unexpected)} unknown ({[*missing, *unexpected][:3]})"
        )
    card = manifest.model_dump(mode="json", exclude_unset=True)
    return Stage1Model(network.to(device).eval(), card)
