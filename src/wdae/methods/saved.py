"""Trained methods on disk: one safetensors file with the settings in its header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.errors import ModelError, StorageError
from wdae.methods.base import Method
from wdae.methods.calibration import Calibration
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import LearnedMethod
from wdae.methods.registry import make
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser
from wdae.nn.space import FeatureSpace
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

_WDAE, _LEARNED, _ESTIMATE = "wdae", "method", InitialEstimate.name
_CENTRE, _WEIGHTS = "space.centre", "space.weights"


def save_method(path: str | Path, method: Method, kind: str = "", *, half: bool = False) -> None:
    """Write a trained method; the file appears whole or not at all.

    Args:
        kind: the name that a learned method beside the denoiser is registered under.
        half: write a denoiser in half precision, at half the size.
    """
    tensors: dict[str, Tensor] = {}
    if isinstance(method, WDAE):
        state = _wdae_state(method)
        for name, value in method.denoiser.state_dict().items():
            tensors[name] = value.half() if half and value.is_floating_point() else value
        if method.space is not None:
            tensors |= {_CENTRE: method.space.centre, _WEIGHTS: method.space.weights}
    elif isinstance(method, InitialEstimate) and method.balance is not None:
        state = {"kind": _ESTIMATE, "name": method.name, "balance": method.balance.as_json()}
    elif isinstance(method, LearnedMethod):
        tensors = dict(method.state_dict())
        state = {
            "kind": _LEARNED,
            "method": kind,
            "name": method.name,
            "dim": method.dim,
            "n_base": method.n_base,
            "options": dict(method.options),
        }
    else:
        raise ModelError(f"{method.name} has nothing learned to save; make it anew by its name")
    save_checkpoint(path, tensors, state)


def load_method(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    dim: int | None = None,
    verify: bool = True,
) -> Method:
    """Read a method written by :func:`save_method`, ready to use.

    Args:
        path: the file.
        device: where it will work.
        dtype: of a denoiser's matrix products.
        dim: the feature size it is wanted for; another one is refused here rather than at first use.
        verify: compare the file's checksum.
    """
    saved = load_checkpoint(path, verify=verify)
    state, kind = saved.state, saved.state.get("kind")
    method: Method
    if kind == _WDAE:
        method = _wdae(state, dict(saved.tensors), device, dtype)
        _refuse_other_size(path, method.denoiser.dim, dim)
    elif kind == _ESTIMATE:
        method = InitialEstimate(Calibration.from_json(state["balance"]))
    elif kind == _LEARNED:
        _refuse_other_size(path, state["dim"], dim)
        made = make(state["method"], dim=state["dim"], n_base=state["n_base"], **state["options"])
        assert isinstance(made, LearnedMethod)
        made.load_state_dict(saved.tensors)
        method = made.to(device).eval()
    else:
        raise StorageError(f"{path} is a checkpoint, but not of a trained method; give a model.safetensors")
    method.name = state["name"]
    return method


def _wdae_state(method: WDAE) -> dict[str, Any]:
    denoiser, space = method.denoiser, method.space
    state = {
        "kind": _WDAE,
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
    return state if space is None else state | {"space": {"power": space.power, "scale": space.scale}}


def _wdae(
    state: Mapping[str, Any], tensors: dict[str, Tensor], device: torch.device | str, dtype: torch.dtype
) -> WDAE:
    denoiser = Denoiser(**state["denoiser"])
    space = None
    if state.get("space") is not None:
        centre, weights = tensors.pop(_CENTRE).to(device), tensors.pop(_WEIGHTS).to(device)
        space = FeatureSpace(state["space"]["power"], centre, weights, state["space"]["scale"])
    denoiser.load_state_dict(tensors)
    balance = state.get("balance")
    return WDAE(
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


def _refuse_other_size(path: str | Path, has: int, wanted: int | None) -> None:
    if wanted is not None and has != wanted:
        raise ModelError(
            f"{path} works on features of size {has}, and size {wanted} is asked for; use a bank from the "
            "backbone it was trained on, or train it on this one"
        )
