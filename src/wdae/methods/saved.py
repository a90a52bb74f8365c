"""Trained methods of any kind on disk: one safetensors file with the settings in its header."""

from __future__ import annotations

from pathlib import Path

import torch

from wdae.errors import ModelError, StorageError
from wdae.methods.base import Method
from wdae.methods.learned import LearnedMethod
from wdae.methods.registry import make
from wdae.methods.wdae import WDAE
from wdae.methods.wdae_file import load_wdae, save_wdae
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint

_KIND = "method"


def save_method(path: str | Path, method: Method, kind: str) -> None:
    """Write a trained method, registered as ``kind``; the file appears whole or not at all."""
    if isinstance(method, WDAE):
        save_wdae(path, method)
        return
    if not isinstance(method, LearnedMethod):
        raise ModelError(f"{method.name} has nothing learned to save; make it anew by its name")
    state = {
        "kind": _KIND,
        "method": kind,
        "name": method.name,
        "dim": method.dim,
        "n_base": method.n_base,
        "options": dict(method.options),
    }
    save_checkpoint(path, method.state_dict(), state)


def load_method(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    dim: int | None = None,
) -> Method:
    """Read a method written by :func:`save_method` (or a denoiser's ``model.safetensors``), ready to use.

    Args:
        path: the file.
        device: where it will work.
        dtype: of a denoiser's matrix products.
        dim: the feature size it is wanted for; another one is refused here rather than at first use.
    """
    saved = load_checkpoint(path)
    state = saved.state
    if state.get("kind") == "wdae":
        denoiser = load_wdae(path, device, dtype)
        _refuse_other_size(path, denoiser.denoiser.dim, dim)
        return denoiser
    if state.get("kind") != _KIND:
        raise StorageError(f"{path} is a checkpoint, but not of a trained method; give a model.safetensors")
    _refuse_other_size(path, state["dim"], dim)
    method = make(state["method"], dim=state["dim"], n_base=state["n_base"], **state["options"])
    assert isinstance(method, LearnedMethod)
    method.load_state_dict(saved.tensors)
    method.name = state["name"]
    return method.to(device).eval()


def _refuse_other_size(path: str | Path, has: int, wanted: int | None) -> None:
    if wanted is not None and has != wanted:
        raise ModelError(
            f"{path} works on features of size {has}, and size {wanted} is asked for; use a bank from the "
            "backbone it was trained on, or train it on this one"
        )
