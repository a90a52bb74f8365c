"""Checkpoints: one safetensors file, JSON state in its metadata, and a checksum over both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from torch import Tensor

from wdae.errors import StorageError
from wdae.storage.manifest import check_version, verifying
from wdae.storage.records import R, Record, construct, parse, shown
from wdae.storage.tensors import open_tensors, save_tensors

FORMAT = "wdae-checkpoint"
VERSION, NOUN = 1, "a checkpoint"


class StateRecord(Record):
    """A checkpoint's state: as any record, but that training may have met NaN."""

    model_config = ConfigDict(allow_inf_nan=True)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What :func:`load_checkpoint` gives back: named tensors on the CPU and the JSON state."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    path: Path = Path()

    def read(self, kind: type[R]) -> R:
        """The state as a record of its kind, or one error that lists every fault."""
        return construct(kind, json.dumps(self.state), self.path)

    def section(self, name: str) -> dict[str, Tensor]:
        """The tensors saved under ``name`` by :func:`section`, under the names they had before."""
        start = f"{name}/"
        return {key.removeprefix(start): t for key, t in self.tensors.items() if key.startswith(start)}


def section(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with ``name/`` before their names, so that several sets share one checkpoint."""
    return {f"{name}/{key}": tensor for key, tensor in tensors.items()}


def save_checkpoint(path: str | Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state to ``path``; until all is on disk the previous checkpoint stays.

    Args:
        tensors: any names, dtypes and devices (model, optimiser and generator states).
        state: JSON values: step, best score, recipe, and so on.
    """
    text = json.dumps(dict(state))
    cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "version": str(VERSION), "state": text, "sha256": _digest(cpu, text)}
    save_tensors(path, cpu, metadata)


def load_checkpoint(path: str | Path, *, verify: bool = True) -> Checkpoint:
    """Read a checkpoint, refusing one that is truncated, altered, or of a newer format.

    Without ``verify`` its checksum is not computed: a manifest has vouched for the file.
    """
    tensors, metadata = open_tensors(path)
    if metadata.get("format") != FORMAT:
        raise StorageError(f"{path} is not a checkpoint of wdae")
    number = metadata.get("version", "")
    check_version(int(number) if number.isdecimal() and len(number) < 9 else number, VERSION, NOUN, path)
    text = metadata.get("state", "")
    if verify and verifying() and _digest(tensors, text) != metadata.get("sha256"):
        raise StorageError(
            f"{path} is altered: its checksum does not match; use another checkpoint or start again"
        )
    state = parse(text.encode(), f"the state of {path}", nan=True)
    if not isinstance(state, dict):
        raise StorageError(f"{path} is altered: its state is {shown(state)}")
    return Checkpoint(tensors, state, Path(path))


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything an optimiser knows (buffers, step counts, rates) as named tensors.

    Plain numbers become 0-d tensors of 64 bits, so that they come back exactly.
    """
    flat: dict[str, Tensor] = {}
    snapshot = optimiser.state_dict()
    for index, parameter in enumerate(_parameters(optimiser)):
        flat[f"shape.{index}"] = torch.tensor(parameter.shape, dtype=torch.int64)
        for name, value in snapshot["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                flat[f"state.{index}.tensor.{name}"] = value
            elif value is not None:
                flat[f"state.{index}.number.{name}"] = _number(name, value)
    for index, group in enumerate(snapshot["param_groups"]):
        for name, value in group.items():
            if name != "params" and value is not None:
                flat[f"group.{index}.{name}"] = _number(name, value)
    return flat


def restore_module(module: torch.nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Put saved weights into a module that they must fit."""
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise StorageError(f"{path} does not fit: {str(error)[:300]}") from error


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo :func:`optimiser_tensors` into an optimiser made for the same parameters in the same order."""
    shapes = [list(parameter.shape) for parameter in _parameters(optimiser)]
    saved = [tensors[f"shape.{i}"].tolist() for i in range(len(tensors)) if f"shape.{i}" in tensors]
    snapshot = optimiser.state_dict()
    groups = snapshot["param_groups"]
    n_groups = len({name.split(".")[1] for name in tensors if name.startswith("group.")})
    if saved != shapes or n_groups != len(groups):
        raise StorageError(
            f"the checkpoint's optimiser has {len(saved)} parameters in {n_groups} groups, this one has"
            f" {len(shapes)} in {len(groups)}, or other shapes; resume with the recipe the run began with"
        )
    state: dict[int, dict[str, Any]] = {}
    try:
        for key, tensor in tensors.items():
            kind, index, rest = (*key.split(".", 2), "")[:3]
            if kind == "state":
                form, name = rest.split(".", 1)
                # A fused step would write beyond the end of a buffer that is smaller than its parameter.
                if list(tensor.shape) != ([] if name == "step" or form != "tensor" else shapes[int(index)]):
                    raise ValueError(f"{key} has shape {list(tensor.shape)}")
                value = tensor.clone() if form == "tensor" else tensor.item()
                state.setdefault(int(index), {})[name] = value
            elif kind == "group" and not isinstance(now := groups[int(index)].get(rest), bool | list | None):
                if tensor.shape != _number(rest, now).shape:
                    raise ValueError(f"{key} has shape {list(tensor.shape)}")
                if isinstance(now, Tensor):
                    groups[int(index)][rest] = tensor.to(now.device, copy=True)
                else:
                    groups[int(index)][rest] = tuple(tensor.tolist()) if tensor.ndim else tensor.item()
        kinds = {frozenset(values) for values in state.values()}
        if len(kinds) > 1 or set(state) not in (set(), set(range(len(shapes)))):
            raise ValueError("its buffers are not those of its parameters")
        optimiser.load_state_dict({"state": state, "param_groups": groups})
        for parameter, buffers in optimiser.state.items():
            for name, value in buffers.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # In the parameter's memory layout, which the file does not keep: fused steps need it.
                    buffers[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                    buffers[name].copy_(value)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise StorageError(f"the checkpoint's optimiser is altered: {error!r}") from error


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _number(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, int):
        return torch.tensor(value, dtype=torch.int64)
    if isinstance(value, float | tuple | list):
        return torch.tensor(value, dtype=torch.float64)
    raise TypeError(f"optimiser value {name!r} of type {type(value).__name__} cannot be kept in a checkpoint")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over the state and, in name order, each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
