"""A model on disk: a folder that is always one state, whole.

What was learned lies in files that never change. A change writes the new examples to a file of their own and
then replaces ``model.json``, which alone says what belongs to the model: whoever is interrupted before that
leaves the old state, after it the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.classifier.base_knowledge import Ground
from wdae.classifier.history import History
from wdae.classifier.manifest import check_files, entry, is_model, read_manifest, write_manifest
from wdae.classifier.model import Example, Model
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.errors import StorageError
from wdae.methods.calibration import Calibration
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import ClassGraph
from wdae.storage import files as storage
from wdae.storage.lock import PATIENCE, alone
from wdae.storage.tensors import load_tensors, save_tensors

GROUND, BACKBONE = "ground.safetensors", "backbone.safetensors"


def save(model: Model, path: str | Path, *, half: bool = False) -> None:
    """Write a model to the new folder ``path``, which appears only when it is whole.

    Where the folder holds an earlier state of this very model, what has changed since is added to it.

    Args:
        half: write a new model's denoiser in half precision, at half the size.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from wdae.methods.calibration import Calibration
    >>> ground = Ground(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), Calibration(gain=10.0))
    >>> folder = Path(place.name) / "model"
    >>> save(Model(ground), folder)
    >>> sorted(file.name for file in folder.iterdir())
    ['ground.safetensors', 'model.json']
    """
    if is_model(path):
        _save_again(model, Path(path))
        return
    with storage.atomic_folder(path) as folder:
        save_tensors(folder / GROUND, _ground_tensors(model.ground, half))
        files = {GROUND: entry(folder / GROUND)}
        if model.backbone is not None and model.backbone.tensors is not None:
            save_tensors(folder / BACKBONE, model.backbone.tensors)
            files[BACKBONE] = entry(folder / BACKBONE)
        blocks: list[dict[str, Any]] = []
        if model.examples:
            blocks.append(_write_examples(folder, 1, model.examples, files))
        write_manifest(folder, _content(model, blocks, files))


def _save_again(model: Model, folder: Path) -> None:
    with alone(folder):
        there, manifest = _read(folder, verify=True)
        n_changes, n_examples = len(there.history.changes), len(there.examples)
        same_ground = there.ground.names == model.ground.names and torch.equal(
            there.ground.weights, model.ground.weights
        )
        earlier = there.history.changes == model.history.changes[:n_changes] and all(
            torch.equal(a.feature, b.feature)
            for a, b in zip(there.examples, model.examples[:n_examples], strict=False)
        )
        if not same_ground or not earlier or n_examples > len(model.examples):
            raise StorageError(
                f"{folder} holds another model, or changes that this one lacks; choose another name"
            )
        _commit(folder, manifest, model, n_examples)


def _commit(folder: Path, manifest: dict[str, Any], model: Model, n_examples: int) -> None:
    """Write the examples past the first ``n_examples``, then the manifest."""
    blocks, files = list(manifest["examples"]), dict(manifest["files"])
    if len(model.examples) > n_examples:
        blocks.append(_write_examples(folder, len(blocks) + 1, model.examples[n_examples:], files))
    write_manifest(folder, _content(model, blocks, files))


def load(path: str | Path, *, verify: bool = True) -> Model:
    """Read the model in folder ``path``; one that is cut short, altered or too new is refused.

    Args:
        verify: compare checksums; without, only names and sizes of files are checked.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from wdae.methods.calibration import Calibration
    >>> ground = Ground(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), Calibration(gain=10.0))
    >>> folder = Path(place.name) / "model"
    >>> save(Model(ground), folder)
    >>> load(folder).names
    ('cat', 'dog')
    """
    return _read(Path(path), verify)[0]


@contextmanager
def changing(path: str | Path, *, patience: float = PATIENCE) -> Iterator[Model]:
    """The model in ``path``, to be changed: what the body did to it is kept when the body ends well.

    Other processes that want to change it meanwhile wait up to ``patience`` seconds.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from wdae.methods.calibration import Calibration
    >>> ground = Ground(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), Calibration(gain=10.0))
    >>> folder = Path(place.name) / "model"
    >>> save(Model(ground), folder)
    >>> with changing(folder) as model:
    ...     model.add({"okapi": torch.eye(4)[2:3]})
    >>> load(folder).added
    ('okapi',)
    """
    folder = Path(path)
    read_manifest(folder)  # before a lock file is left in a folder that is no model
    with alone(folder, patience):
        model, manifest = _read(folder, verify=True)
        before, n_examples = model.history, len(model.examples)
        yield model
        if model.history != before:
            _commit(folder, manifest, model, n_examples)


def _content(model: Model, blocks: list[dict[str, Any]], files: dict[str, Any]) -> dict[str, Any]:
    ground = model.ground
    return {
        "base_classes": list(ground.names),
        "dim": ground.dim,
        "calibration": ground.calibration.as_json(),
        "refine_base": ground.refine_base,
        "denoiser": None if ground.method is None else _method_json(ground.method),
        "backbone": None if model.backbone is None else model.backbone.card,
        "info": ground.info,
        "history": model.history.as_json(),
        "examples": blocks,
        "files": files,
    }


def _write_examples(
    folder: Path, number: int, examples: list[Example], files: dict[str, Any]
) -> dict[str, Any]:
    """One file with the examples of a change; returns what the manifest says of it."""
    name = f"examples-{number:06d}.safetensors"
    tensors = {"features": torch.stack([e.feature for e in examples])}
    shown = [i for i, e in enumerate(examples) if e.picture is not None]
    if shown:
        tensors["pictures"] = torch.stack([examples[i].picture for i in shown])  # type: ignore[misc]
        tensors["shown"] = torch.tensor(shown)
    save_tensors(folder / name, tensors)
    files[name] = entry(folder / name)
    return {"file": name, "rows": len(examples), "sources": [e.source for e in examples]}


def _read(folder: Path, verify: bool) -> tuple[Model, dict[str, Any]]:
    manifest = read_manifest(folder)
    check_files(folder, manifest["files"], verify)
    try:
        ground = _ground(load_tensors(folder / GROUND), manifest)
        examples: list[Example] = []
        for block in manifest["examples"]:
            examples += _read_examples(folder, block, ground.dim)
        history = History.from_json(manifest["history"], len(examples))
        card = manifest["backbone"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StorageError(f"{folder} is altered: {error!r}; copy the model again") from error
    model = Model(ground, examples, history)
    if card is not None:
        stored = load_tensors(folder / BACKBONE) if BACKBONE in manifest["files"] else None
        model.backbone = PictureBackbone(card, stored)
    return model, manifest


def _read_examples(folder: Path, block: dict[str, Any], dim: int) -> list[Example]:
    tensors = load_tensors(folder / block["file"])
    features = tensors["features"]
    if features.shape != (block["rows"], dim):
        raise ValueError(f"{block['file']} has features of shape {list(features.shape)}")
    pictures: dict[int, Tensor] = {}
    if "pictures" in tensors:
        pictures = dict(zip(tensors["shown"].tolist(), tensors["pictures"], strict=True))
    return [Example(feature, block["sources"][i], pictures.get(i)) for i, feature in enumerate(features)]


def _ground_tensors(ground: Ground, half: bool) -> dict[str, Tensor]:
    tensors = {"weights": ground.weights, "counts": ground.counts}
    if ground.method is not None:
        state = ground.method.denoiser.state_dict()
        tensors |= {
            f"denoiser/{k}": v.half() if half and v.is_floating_point() else v for k, v in state.items()
        }
    if ground.graph is not None:
        tensors |= {
            "graph/neighbours": ground.graph.neighbours.int(),
            "graph/similarities": ground.graph.similarities,
        }
    return tensors


def _ground(tensors: dict[str, Tensor], manifest: dict[str, Any]) -> Ground:
    names = tuple(manifest["base_classes"])
    weights = tensors["weights"]
    if weights.shape != (len(names), manifest["dim"]):
        raise ValueError(f"weights of shape {list(weights.shape)} for {len(names)} classes")
    method, graph = None, None
    if (card := manifest["denoiser"]) is not None:
        denoiser = Denoiser(**card["network"])
        start = "denoiser/"
        denoiser.load_state_dict(
            {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        )
        steps = {int(k): float(v) for k, v in card["steps"].items()}
        method = WDAE(denoiser.eval(), None, steps, 1, card["neighbours"], card["inverse_temperature"])
        if "graph/neighbours" in tensors:
            graph = ClassGraph(
                tensors["graph/neighbours"].long(),
                tensors["graph/similarities"],
                card["inverse_temperature"],
            )
    return Ground(
        names,
        weights,
        tensors["counts"],
        Calibration.from_json(manifest["calibration"]),
        method,
        graph,
        manifest["refine_base"],
        manifest["info"],
    )


def _method_json(method: WDAE) -> dict[str, Any]:
    network = method.denoiser
    return {
        "network": {
            "dim": network.dim,
            "hidden": network.hidden,
            "n_layers": network.n_layers,
            "dropout": network.dropout,
            "kind": network.kind,
        },
        "steps": {str(k): v for k, v in method.steps.items()},
        "neighbours": method.n_neighbours,
        "inverse_temperature": method.inverse_temperature,
    }
