"""Trained methods on disk: one safetensors file with the settings in its header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.errors import ModelError, StorageError
from wdae.methods.base import Method
from wdae.methods.calibration import Calibration
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import LearnedMethod, WeightGenerator
from wdae.methods.records import EstimateState, LearnedState, PosteriorRecord, WdaeState
from wdae.methods.registry import FORMER, METHODS, make
from wdae.methods.wdae import WDAE
from wdae.nn.denoiser import Denoiser
from wdae.nn.posterior import Posterior
from wdae.nn.space import FeatureSpace
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

_WDAE, _LEARNED, _ESTIMATE = "wdae", "method", InitialEstimate.name
_CENTRE, _WEIGHTS, _WHITEN = "space.centre", "space.weights", "space.whiten"
_ANCHORS, _REGRESSED = "posterior.anchors", "posterior.regressed"


_LARGEST = 10_000  # of any number among a method's options

_RECORDS: dict[str, type[WdaeState | EstimateState | LearnedState]] = {
    _WDAE: WdaeState,
    _ESTIMATE: EstimateState,
    _LEARNED: LearnedState,
}


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
            if method.space.whiten is not None:
                tensors[_WHITEN] = method.space.whiten
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
            **({"start_kept": True} if method.start_kept else {}),
        }
        if isinstance(method, WeightGenerator) and method.balance is not None:
            state["balance"] = method.balance.as_json()
    else:
        raise ModelError(f"{method.name} has nothing learned to save; make it anew by its name")
    if isinstance(method, WDAE | InitialEstimate) and method.posterior is not None:
        tensors[_ANCHORS] = method.posterior.anchors.half()
        if method.posterior.regressed is not None:
            tensors[_REGRESSED] = method.posterior.regressed.half()
        state["posterior"] = {key: getattr(method.posterior, key) for key in PosteriorRecord.model_fields}
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
    kind = saved.state.get("kind")
    record = _RECORDS.get(kind) if isinstance(kind, str) else None
    if record is None:
        raise StorageError(f"{path} is a checkpoint, but not of a trained method; give a model.safetensors")
    state = saved.read(record)
    n_values = sum(tensor.numel() for tensor in saved.tensors.values())
    try:
        method = _built(path, state, dict(saved.tensors), n_values, device, dtype, dim)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StorageError(f"{path} is altered: {str(error)[:300]}; copy or train it again") from error
    method.name = state.name
    return method


def _built(
    path: str | Path,
    state: WdaeState | EstimateState | LearnedState,
    tensors: dict[str, Tensor],
    n_values: int,
    device: torch.device | str,
    dtype: torch.dtype,
    dim: int | None,
) -> Method:
    if isinstance(state, EstimateState):
        balance = Calibration.from_json(state.balance.model_dump(mode="json"))
        return InitialEstimate(balance, _posterior(state.posterior, tensors, device))
    if isinstance(state, WdaeState):
        _refuse_other_size(path, state.denoiser.dim, dim)
        if state.denoiser.dim * state.denoiser.hidden > n_values:
            raise ValueError(
                f"a denoiser of {state.denoiser.dim} × {state.denoiser.hidden}, and {n_values} values"
            )
        posterior = _posterior(state.posterior, tensors, device, state.denoiser.dim)
        method = _wdae(state.model_dump(mode="json"), tensors, device, dtype)
        method.posterior = posterior
        return method
    _refuse_other_size(path, state.dim, dim)
    if large := [v for v in _numbers(state.options) if not -_LARGEST <= v <= _LARGEST]:
        raise ValueError(f"an option of {large[0]}")
    size: dict[str, Any] = {"dim": state.dim, "n_base": state.n_base, **state.options}
    name = _named(state.method, size, {key: t.shape for key, t in tensors.items()})
    made = make(name, **size)
    if not isinstance(made, LearnedMethod):
        raise ValueError(f"{state.method} is not learned")
    made.load_state_dict(tensors)
    made.start_kept = state.start_kept
    if state.balance is not None:
        if not isinstance(made, WeightGenerator):
            raise ValueError(f"{state.method} has no balance")
        made.balance = Calibration.from_json(state.balance.model_dump(mode="json"))
    return made.to(device).eval()


def _named(name: str, size: dict[str, Any], wanted: dict[str, torch.Size]) -> str:
    """The method that a file's weights are of: the one it names, or what was called so before."""
    for one in (name, FORMER.get(name)):
        if one is None or (one == name and name in FORMER and name not in METHODS):
            continue
        try:
            with torch.device("meta"):  # so that sizes cannot ask for more memory than the file has bytes
                built = make(one, **size)
        except ModelError:  # options of the former method
            if name not in FORMER or one != name:
                raise
            continue
        if {key: t.shape for key, t in getattr(built, "state_dict", dict)().items()} == wanted:
            return one
    raise ValueError(f"its weights are not those of {name} of {size['dim']} dimensions")


def _numbers(value: Any) -> list[float]:
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return [number for one in inner for number in _numbers(one)]
    return [value] if isinstance(value, (int, float)) else []


def _wdae_state(method: WDAE) -> dict[str, Any]:
    denoiser, space = method.denoiser, method.space
    state: dict[str, Any] = {
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
    if space is not None:
        state["space"] = {"power": space.power, "scale": space.scale}
        state["space"] |= {} if space.whiten is None else {"shrink": space.shrink}
    return state


def _wdae(
    state: Mapping[str, Any], tensors: dict[str, Tensor], device: torch.device | str, dtype: torch.dtype
) -> WDAE:
    space, D = None, state["denoiser"]["dim"]
    if state.get("space") is not None:
        centre, weights = tensors.pop(_CENTRE).to(device), tensors.pop(_WEIGHTS).to(device)
        whiten = tensors.pop(_WHITEN).to(device) if state["space"]["shrink"] < 1 else None
        shapes = [
            list(centre.shape),
            list(weights.shape[1:]),
            [D, D] if whiten is None else list(whiten.shape),
        ]
        if shapes != [[D], [D], [D, D]]:
            raise ValueError(f"a space of shapes {shapes} for features of size {D}")
        power, scale, shrink = (state["space"][key] for key in ("power", "scale", "shrink"))
        space = FeatureSpace(power, centre, weights, scale, whiten, shrink)
    with torch.device("meta"):  # weights that are drawn first take half the time that opening a model takes
        denoiser = Denoiser(**state["denoiser"])
    kinds = {name: own.dtype for name, own in denoiser.state_dict().items()}
    own = {name: t.to(kinds.get(name, t.dtype), copy=True) for name, t in tensors.items()}
    denoiser.load_state_dict(own, assign=True)
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


def _posterior(
    record: PosteriorRecord | None,
    tensors: dict[str, Tensor],
    device: torch.device | str,
    dim: int | None = None,
) -> Posterior | None:
    if record is None:
        return None
    anchors = tensors.pop(_ANCHORS).float().to(device)
    if anchors.ndim != 2 or not len(anchors) or anchors.shape[1] != (dim or anchors.shape[1]):
        raise ValueError(f"base images of shape {list(anchors.shape)}")
    found = Posterior(anchors, **dict(record))
    if _REGRESSED not in tensors:
        return found
    regressed = tensors.pop(_REGRESSED).float().to(device)
    if list(regressed.shape) != [record.n_base, anchors.shape[1] + 1]:
        raise ValueError(f"regressed base weights of shape {list(regressed.shape)}")
    return replace(found, regressed=regressed)


def _refuse_other_size(path: str | Path, has: int, wanted: int | None) -> None:
    if wanted is not None and has != wanted:
        raise ModelError(
            f"{path} works on features of size {has}, and size {wanted} is asked for; use a bank from the "
            "backbone it was trained on, or train it on this one"
        )
