"""A stage-1 model as weights only: ``model.safetensors`` and ``model.json`` in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from wdae.errors import ModelError
from wdae.stage1.recognition_model import RecognitionModel, build_recognition_model
from wdae.storage.records import read_json, write_json
from wdae.storage.tensors import load_tensors, save_tensors

FORMAT, VERSION = "wdae-stage1-model", 1
WEIGHTS, CARD = "model.safetensors", "model.json"


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


def save_model(
    folder: str | Path,
    network: RecognitionModel,
    card: dict[str, Any],
    dtype: Literal["float32", "float16"] = "float32",
) -> None:
    """Write weights and card; the rotation head is not saved."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = torch.float16 if dtype == "float16" else torch.float32
    tensors = {
        name: value.detach().cpu().contiguous().to(wanted if value.is_floating_point() else value.dtype)
        for name, value in network.state_dict().items()
        if not name.startswith("turn_head.") and not name.endswith("num_batches_tracked")
    }
    save_tensors(folder / WEIGHTS, tensors, {"format": FORMAT, "version": str(VERSION)})
    write_json(folder / CARD, {"format": FORMAT, "version": VERSION, **card})


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> Stage1Model:
    """Read a model written by :func:`save_model`, in evaluation mode and float32."""
    folder = Path(folder)
    if not (folder / CARD).is_file() or not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no stage-1 model; give a folder with {WEIGHTS} and {CARD}")
    card = read_json(folder / CARD)
    if card.get("format") != FORMAT or card.get("version", 0) > VERSION:
        raise ModelError(
            f"{folder / CARD} is of format {card.get('format')!r}, version {card.get('version')}; "
            f"accepted: {FORMAT!r} up to version {VERSION}"
        )
    options = dict(card["backbone_options"])
    if card["backbone"].startswith(("timm:", "transformers:")):
        options["pretrained"] = False  # Every weight comes from the file.
    network = build_recognition_model(card["backbone"], options, len(card["class_names"]), seed=0)
    tensors = {name: value.float() for name, value in load_tensors(folder / WEIGHTS).items()}
    try:
        missing, unexpected = network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS} does not fit backbone {card['backbone']!r}: {error}") from error
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ModelError(
            f"{folder / WEIGHTS} does not fit backbone {card['backbone']!r}: "
            f"{len(missing)} weights missing, {len(unexpected)} unknown ({[*missing, *unexpected][:3]})"
        )
    return Stage1Model(network.to(device).eval(), card)
