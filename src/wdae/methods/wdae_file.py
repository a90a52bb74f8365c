"""A trained wDAE on disk: one safetensors file with its settings in the header."""

from __future__ import annotations

from pathlib import Path

import torch

from wdae.errors import StorageError
from wdae.methods.calibration import Calibration
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser
from wdae.nn.space import FeatureSpace
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

_CENTRE, _WEIGHTS = "space.centre", "space.weights"


def save_wdae(path: str | Path, method: WDAE) -> None:
    """Write a method; the file appears whole or not at all."""
    denoiser = method.denoiser
    state = {
        "kind": "wdae",
        "name": method.name,
        "denoiser": {
            "dim": denoiser.dim,
            "hidden": denoiser.hidden,
            "n_layers": denoiser.n_layers,
            "dropout": denoiser.dropout,
            "kind": denoiser.kind,
        },
        "scale": method.scale,
        "steps": [[k, v] for k, v in sorted(method.steps.items())],
        "n_steps": method.n_steps,
        "n_neighbours": method.n_neighbours,
        "inverse_temperature": method.inverse_temperature,
        "balance": None if method.balance is None else method.balance.as_json(),
        "refine_base": method.refine_base,
    }
    tensors = dict(denoiser.state_dict())
    if method.space is not None:
        state["space"] = {"power": method.space.power, "scale": method.space.scale}
        tensors |= {_CENTRE: method.space.centre, _WEIGHTS: method.space.weights}
    save_checkpoint(path, tensors, state)


def load_wdae(
    path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> WDAE:
    """Read a method written by :func:`save_wdae`, ready to use on a device."""
    saved = load_checkpoint(path)
    state = saved.state
    if state.get("kind") != "wdae":
        raise StorageError(
            f"{path} is a checkpoint, but not of a trained wDAE; give a run's model.safetensors"
        )
    denoiser = Denoiser(**state["denoiser"])
    tensors = dict(saved.tensors)
    space = None
    if state.get("space") is not None:
        centre, weights = tensors.pop(_CENTRE).to(device), tensors.pop(_WEIGHTS).to(device)
        space = FeatureSpace(state["space"]["power"], centre, weights, state["space"]["scale"])
    denoiser.load_state_dict(tensors)
    balance = state.get("balance")
    method = WDAE(
        denoiser.to(device).eval(),
        state["scale"],
        {int(k): float(v) for k, v in state["steps"]},
        state["n_steps"],
        state["n_neighbours"],
        state["inverse_temperature"],
        dtype,
        balance=None if balance is None else Calibration.from_json(balance),
        refine_base=state.get("refine_base", True),
        space=space,
    )
    method.name = state["name"]
    return method
