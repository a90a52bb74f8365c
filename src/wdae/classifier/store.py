"""A model on disk: a folder that is always one state, whole.

What was learned lies in files that never change. A change writes the new examples to a file of their own and
then replaces ``model.json``, which alone says what belongs to the model: whoever is interrupted before that
leaves the old state, after it the new one. docs/formats.md describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.calibration.pseudo_novel import Weighing
from wdae.calibration.unknown import Detector
from wdae.classifier.base_knowledge import MOST_KEPT, BaseKnowledge, HeldOut
from wdae.classifier.history import History
from wdae.classifier.light.answers import Answers
from wdae.classifier.light.folder import HEAD, ModelFolder, head_file
from wdae.classifier.light.manifest import (
    BACKBONE,
    BASE,
    BASE_1,
    INDEX,
    METHOD,
    ExampleFile,
    ModelManifest,
    names_in,
)
from wdae.classifier.light.manifest import is_model as is_model
from wdae.classifier.model import Example, Model
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.classifier.predictions import TorchAnswers
from wdae.errors import ModelError, StorageError
from wdae.methods.calibration import Calibration
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.saved import load_method, save_method
from wdae.methods.wdae import WDAE
from wdae.nn.class_index import ClassIndex
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import ClassGraph
from wdae.storage import manifest as manifests
from wdae.storage.files import atomic_folder
from wdae.storage.lock import PATIENCE, alone
from wdae.storage.tensors import save_tensors
from wdae.storage.trust import Trust

_MOST_HEADS, _MOST_HEAD_BYTES = 8, 2**26  # states whose classifiers a folder keeps


def save(model: Model, path: str | Path, *, half: bool = False) -> None:
    """Write a model to the new folder ``path``, which appears only when it is whole.

    Where the folder holds an earlier state of this very model, what has changed since is added to it.

    Args:
        half: write a new model's denoiser in half precision, at half the size.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> folder = Path(place.name) / "model"
    >>> save(Model(base), folder)
    >>> sorted(file.name for file in folder.iterdir())
    ['base.safetensors', 'method.safetensors', 'model.json']
    """
    if not isinstance(model, Model):
        raise ModelError(
            f"only a model is saved here, got a {type(model).__name__}; a bank has bank.save(path)"
        )
    if is_model(path):
        _save_again(model, Path(path))
        return
    with atomic_folder(path) as folder:
        files = _write_base(folder, model.base, half)
        if model.backbone is not None and model.backbone.tensors is not None:
            save_tensors(folder / BACKBONE, model.backbone.tensors)
            files[BACKBONE] = manifests.entry(folder / BACKBONE)
        blocks: list[dict[str, Any]] = []
        if model.examples:
            blocks.append(_write_examples(folder, 1, model.examples, files))
        _write_head(folder, model, files)
        _write_manifest(folder, model, blocks, files)


def _save_again(model: Model, folder: Path) -> None:
    with alone(folder):
        there, manifest = _read(folder)
        n_changes, n_examples = len(there.history.changes), len(there.examples)
        same_base = (
            there.base.names == model.base.names
            and torch.equal(there.base.weights, model.base.weights)
            and type(there.base.method) is type(model.base.method)
            and _as_text(there.base.calibration) == _as_text(model.base.calibration)
        )
        earlier = there.history.changes == model.history.changes[:n_changes] and all(
            torch.equal(a.feature, b.feature)
            for a, b in zip(there.examples, model.examples[:n_examples], strict=False)
        )
        if not same_base or not earlier or n_examples > len(model.examples):
            raise StorageError(
                f"{folder} holds another model, or changes that this one lacks; choose another name"
            )
        _commit(folder, manifest, model, n_examples)


def _as_text(calibration: Calibration) -> str:
    """As a file has it: figures that are no numbers equal themselves there."""
    return json.dumps(calibration.as_json(), sort_keys=True)


def _commit(folder: Path, manifest: ModelManifest, model: Model, n_examples: int) -> None:
    """Write the examples past the first ``n_examples``, then the manifest."""
    plain = manifest.model_dump(mode="json")
    blocks, files = plain["examples"], plain["files"]
    if manifest.version_1 is not None:
        del files[BASE_1]
        files |= _write_base(folder, model.base)
    if len(model.examples) > n_examples:
        blocks.append(_write_examples(folder, len(blocks) + 1, model.examples[n_examples:], files))
    old = _write_head(folder, model, files)
    _write_manifest(folder, model, blocks, files)
    for name in (BASE_1, *old):
        (folder / name).unlink(missing_ok=True)


def load(path: str | Path, *, verify: bool = True, trust: Trust = ()) -> Model:
    """Read the model in folder ``path``; one that is cut short, altered or too new is refused.

    Args:
        verify: compare checksums; without, only names and sizes of files are checked.
        trust: a backbone of others (``pkg.module:factory``) that the model may name.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> folder = Path(place.name) / "model"
    >>> save(Model(base), folder)
    >>> load(folder).names
    ('cat', 'dog')
    """
    return _read(Path(path), verify, trust)[0]


@contextmanager
def changing(
    path: str | Path, *, patience: float = PATIENCE, opened: Model | None = None, trust: Trust = ()
) -> Iterator[Model]:
    """The model in ``path``, to be changed: what the body did to it is kept when the body ends well.

    Other processes that want to change it meanwhile wait up to ``patience`` seconds.

    Args:
        opened: the model as :func:`load` gave it; it is not read again unless somebody has changed it since.
        trust: as that of :func:`load`.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> folder = Path(place.name) / "model"
    >>> save(Model(base), folder)
    >>> with changing(folder) as model:
    ...     model.add({"okapi": torch.eye(4)[2:3]})
    >>> load(folder).added
    ('okapi',)
    """
    folder = Path(path)
    if not is_model(folder):  # a lock file would be left in a folder that is no model
        manifests.read(ModelManifest, folder)
    with alone(folder, patience):
        manifest = manifests.read(ModelManifest, folder)
        model, kept = opened, manifest.history
        if (
            model is None
            or model.stored != manifest.sha256
            or (model.history.head, len(model.history.changes)) != (kept.head, len(kept.changes))
        ):
            model, manifest = _read(folder, trust=trust)
        before, n_examples = model.history, len(model.examples)
        yield model
        if model.history != before:
            _commit(folder, manifest, model, n_examples)


def _write_head(folder: Path, model: Model, files: dict[str, Any]) -> list[str]:
    """Keep the classifier of the present state, so that who asks need not compute it, nor load torch.

    Returns the files of earlier states that the manifest lists no more.
    """
    name = head_file(model.state, model.history.novel_share())
    if model.base.index is not None:
        return []  # what an index finds is scored by torch
    if model.state and name not in files:
        tensors = head_tensors(model)
        if sum(tensor.nbytes for tensor in tensors.values()) > _MOST_HEAD_BYTES:
            return []
        save_tensors(folder / name, tensors)
        files[name] = manifests.entry(folder / name)
    kept = [file for file in files if file.startswith(HEAD)]
    old = [file for file in kept[:-_MOST_HEADS] if file != name]
    for file in old:
        del files[file]
    return old


def head_tensors(model: Model) -> dict[str, Tensor]:
    """The classifier of a model's present state: what differs from the base classes as they were learned."""
    head, base = model.head, model.base
    moved = torch.zeros(0, dtype=torch.int64)
    if head.base is not base.weights:
        moved = (head.base != base.weights).any(1).nonzero()[:, 0]
    tensors = {
        "rows": torch.cat([moved, torch.arange(head.n_base, len(head.names))]),
        "weights": torch.cat([head.base[moved], head.added]),
        "gains": head.gains,
        "offsets": head.offsets,
        "prior": head.prior,
    }
    if base.detector is not None and model.added:
        groups = [torch.stack([e.feature for e in model.examples_of(name)]) for name in model.added]
        known = base.detector.added(groups)
        tensors |= {"known/means": known.means, "known/ordinary": known.ordinary}
        tensors |= {"known/profiles": known.profiles} if base.detector.background is not None else {}
    return {key: tensor.float() if key != "rows" else tensor for key, tensor in tensors.items()}


def computed_answers(folder: ModelFolder) -> Answers | TorchAnswers:
    """What a model answers now, computed; kept in its folder where nobody else is changing it."""
    model, manifest = _read(folder.path, verify=False)  # its files were checked when the folder was opened
    if manifest.sha256 != folder.manifest.sha256:  # and have changed since
        model, manifest = _read(folder.path)
    if model.base.index is not None:
        return TorchAnswers(model)
    head = {name: tensor.numpy() for name, tensor in head_tensors(model).items()}
    if manifest.version_1 is None:  # else with its next change
        with suppress(StorageError, OSError), alone(folder.path, 0):  # or by somebody who may write
            if manifests.read(ModelManifest, folder.path).sha256 == manifest.sha256:
                _commit(folder.path, manifest, model, len(model.examples))
    return folder.answers(head)


def _write_manifest(folder: Path, model: Model, blocks: list[dict[str, Any]], files: dict[str, Any]) -> None:
    base = model.base
    content: dict[str, Any] = {
        "base_classes": list(base.names) if base.index is None else [],
        "dim": base.dim,
        "scale": base.scale,
        "backbone": None if model.backbone is None else model.backbone.card,
        "info": base.info,
        "history": model.history.as_json(),
        "examples": blocks,
        "files": files,
    }
    if base.index is not None:
        content["index"] = dict(base.index.facts)
    version = 2 if base.index is None else 3
    model.stored = manifests.write(ModelManifest, folder, content, version=version)


def _write_base(folder: Path, base: BaseKnowledge, half: bool = False) -> dict[str, Any]:
    """The files of what was learned; returns what the manifest says of them."""
    tensors = {"counts": base.counts}
    if base.space is None:  # else the method's file has them
        tensors["weights"] = base.weights
    if base.graph is not None:
        tensors |= {
            "graph/neighbours": base.graph.neighbours.int(),
            "graph/similarities": base.graph.similarities,
        }
    if base.held_out is not None:
        tensors |= {
            "held_out/features": base.held_out.features,
            "held_out/labels": base.held_out.labels.int(),
        }
        if base.held_out.weights is not None:
            tensors["held_out/weights"] = base.held_out.weights
    if base.detector is not None:
        tensors |= {f"unknown/{name}": tensor for name, tensor in base.detector.tensors().items()}
    written = [BASE, METHOD]
    if base.index is not None:
        if any("\n" in name for name in base.names):
            raise ModelError("a class name holds the end of a line; give it another name")
        tensors["names"] = torch.frombuffer(bytearray("\n".join(base.names).encode()), dtype=torch.uint8)
        base.index.save(folder / INDEX)
        written.append(INDEX)
    save_tensors(folder / BASE, tensors)
    method = base.method
    if method.balance is None and isinstance(method, InitialEstimate):
        method = InitialEstimate(base.calibration)
    save_method(folder / METHOD, method, half=half)
    return {name: manifests.entry(folder / name) for name in written}


def _write_examples(
    folder: Path, number: int, examples: Sequence[Example], files: dict[str, Any]
) -> dict[str, Any]:
    """One file with the examples of a change; returns what the manifest says of it."""
    name = f"examples-{number:06d}.safetensors"
    tensors = {"features": torch.stack([e.feature for e in examples])}
    shown = [i for i, e in enumerate(examples) if e.picture is not None]
    if shown:
        tensors["pictures"] = torch.stack([examples[i].picture for i in shown])  # type: ignore[misc]
        tensors["shown"] = torch.tensor(shown)
    save_tensors(folder / name, tensors)
    files[name] = manifests.entry(folder / name)
    return {"file": name, "rows": len(examples), "sources": [e.source for e in examples]}


def _read(folder: Path, verify: bool = True, trust: Trust = ()) -> tuple[Model, ModelManifest]:
    manifest = manifests.read(ModelManifest, folder)
    manifests.check_files(folder, manifest, verify=verify)

    def tensors(name: str) -> dict[str, Tensor]:
        return manifests.read_tensors(folder, manifest, name, verify=False)  # just checked

    try:
        if manifest.version_1 is not None:
            base = _base_of_version_1(tensors(BASE_1), manifest)
        else:
            base = _base(tensors(BASE), _method(folder, manifest), manifest, folder)
        examples: list[Example] = []
        for block in manifest.examples:
            examples += _examples(tensors(block.file), block, base.dim)
        history = History.from_json(manifest.history.model_dump(mode="json"), len(examples))
        stored = tensors(BACKBONE) if BACKBONE in manifest.files else None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StorageError(f"{folder} is altered: {error!r}; copy the model again") from error
    model = Model(base, examples, history)
    model.stored = manifest.sha256
    if manifest.backbone is not None:
        card = manifest.backbone.model_dump(mode="json", exclude_unset=True)
        model.backbone = PictureBackbone(card, stored, trust)
    return model, manifest


def _method(folder: Path, manifest: ModelManifest) -> Weighing:
    if METHOD not in manifest.files:
        raise ValueError(f"{METHOD} is not listed")
    method = load_method(folder / METHOD, verify=False)
    if not isinstance(method, WDAE | InitialEstimate):
        raise ValueError(f"{method.name} is no method to teach with")
    return method


def _base(
    tensors: dict[str, Tensor], method: Weighing, manifest: ModelManifest, folder: Path | None = None
) -> BaseKnowledge:
    space = method.space if isinstance(method, WDAE) else None
    weights = tensors["weights"] if space is None else space.weights
    names, counts = manifest.base_classes, tensors["counts"]
    if "names" in tensors:
        names = names_in(tensors["names"].numpy())
    size = (len(names), manifest.dim)
    if weights.shape != size or counts.shape != size[:1]:
        raise ValueError(f"weights of shape {list(weights.shape)} for {len(names)} classes")
    if isinstance(method, WDAE) and method.denoiser.dim != manifest.dim:
        raise ValueError(f"a denoiser of size {method.denoiser.dim}")
    graph = None
    if isinstance(method, WDAE) and "graph/neighbours" in tensors:
        neighbours, similarities = tensors["graph/neighbours"].long(), tensors["graph/similarities"]
        if neighbours.shape != similarities.shape or len(neighbours) != len(names):
            raise ValueError(f"a graph of shape {list(neighbours.shape)}")
        if neighbours.numel() and not 0 <= int(neighbours.min()) <= int(neighbours.max()) < len(names):
            raise ValueError("a graph with neighbours that are no classes")
        index = None
        if manifest.index is not None and folder is not None and INDEX in manifest.files:
            index = ClassIndex.open(folder / INDEX, weights, manifest.index.model_dump())
        graph = ClassGraph(neighbours, similarities, method.inverse_temperature, index)
    held_out = _held_out(tensors, len(names), manifest.dim)
    kept = {k.removeprefix("unknown/"): v for k, v in tensors.items() if k.startswith("unknown/")}
    detector = Detector.of_tensors(kept, len(names), manifest.dim) if kept else None
    return BaseKnowledge(
        names, weights, counts, method, manifest.scale, graph, manifest.info, held_out, detector
    )


def _held_out(tensors: dict[str, Tensor], n_base: int, dim: int) -> HeldOut | None:
    if "held_out/features" not in tensors:
        return None
    features, labels = tensors["held_out/features"].half(), tensors["held_out/labels"].long()
    n_kept = min(len(labels), MOST_KEPT)
    if features.shape != (n_kept, dim) or labels.shape != (n_kept,):
        raise ValueError(f"held-out pictures of shape {list(features.shape)}")
    if not bool(features.isfinite().all()):
        raise ValueError("held-out pictures with values that are not finite")
    if n_kept and not 0 <= int(labels.min()) <= int(labels.max()) < n_base:
        raise ValueError("held-out pictures of no class")
    weights = tensors.get("held_out/weights")
    if weights is not None:
        weights = weights.half()
        if weights.shape != (n_base, dim) or not bool(weights.isfinite().all()):
            raise ValueError(f"weights beside held-out pictures of shape {list(weights.shape)}")
    return HeldOut(features, labels, weights)


def _base_of_version_1(tensors: dict[str, Tensor], manifest: ModelManifest) -> BaseKnowledge:
    old = manifest.version_1
    assert old is not None
    balance = Calibration.from_json(old.calibration.model_dump(mode="json"))
    card, method = old.denoiser, InitialEstimate(balance)
    if card is None:
        return _base(tensors, method, manifest)
    if card.network.dim * card.network.hidden > sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"a denoiser of {card.network.dim} × {card.network.hidden}, and too few values")
    denoiser, start = Denoiser(**card.network.model_dump()), "denoiser/"
    denoiser.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
    steps = dict(card.steps)
    refined = WDAE(
        denoiser.eval(),
        None,
        steps,
        n_neighbours=card.neighbours,
        inverse_temperature=card.inverse_temperature,
        balance=balance,
        refine_base=old.refine_base,
    )
    return _base(tensors, refined, manifest)


def _examples(tensors: dict[str, Tensor], block: ExampleFile, dim: int) -> list[Example]:
    features = tensors["features"]
    if features.shape != (block.rows, dim):
        raise ValueError(f"{block.file} has features of shape {list(features.shape)}")
    if len(block.sources) != block.rows:
        raise ValueError(f"{len(block.sources)} sources of the {block.rows} examples in {block.file}")
    pictures: dict[int, Tensor] = {}
    if "pictures" in tensors:
        pictures = dict(zip(tensors["shown"].tolist(), tensors["pictures"], strict=True))
    return [Example(feature, block.sources[i], pictures.get(i)) for i, feature in enumerate(features)]
