"""A trained wDAE on disk: one safetensors file with its settings in the header."""

from __future__ import annotations

from pathlib import Path

import torch

from wdae.errors import StorageError
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser
from wdae.train.checkpoint import load_checkpoint, save_checkpoint


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
    }
    save_checkpoint(path, denoiser.state_dict(), state)


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
    denoiser.load_state_dict(saved.tensors)
    method = WDAE(
        denoiser.to(device).eval(),
        state["scale"],
        {int(k): float(v) for k, v in state["steps"]},
        state["n_steps"],
        state["n_neighbours"],
        state["inverse_temperature"],
        dtype,
    )
    method.name = state["name"]
    return method
