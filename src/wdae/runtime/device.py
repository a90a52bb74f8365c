"""Which device and which precision to work in."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from wdae.errors import RecipeError


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RecipeError(f"unknown device {name!r}; give auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RecipeError(
            f"device {name!r} was asked for, but this machine has no usable GPU; give cpu or auto"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RecipeError(f"device {name!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return device


def pick_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products: ``auto`` is bfloat16 where the hardware computes in it."""
    if precision == "auto":
        precision = "bfloat16" if _native_bfloat16(device) else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def _native_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    return False


def full_precision(like: Tensor) -> AbstractContextManager[None]:
    """A block without autocast on the device of a tensor, for linear systems; takes float32 tensors."""
    context: AbstractContextManager[None] = torch.autocast(like.device.type, enabled=False)
    return context


def fast_arithmetic(device: torch.device) -> ExitStack:
    """Allow TF32, and let cuDNN search for its fastest algorithms, on GPUs; what it returns takes it back.

    As ``with fast_arithmetic(device):`` it holds for a block alone. It is for convolutions: class graphs,
    linear systems and scores that a process computes after it has trained or extracted need all of float32.
    """
    restore = ExitStack()
    if device.type == "cuda":
        restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        for name in ("benchmark", "allow_tf32"):
            restore.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
            setattr(torch.backends.cudnn, name, True)
        torch.set_float32_matmul_precision("high")
    return restore
