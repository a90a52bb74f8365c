"""Methods work where their inputs lie: nothing made on the CPU gets among tensors of another device.

The meta device stands in for a GPU: it has shapes but no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wdae.methods import BaseClasses, LearnedMethod, Method, Support, TrainingBatch, find, make, names
from wdae.methods.base import prepared
from wdae.methods.wdae import WDAE
from wdae.synthetic import synthetic_bank

META = torch.device("meta")
E, N, n, K, Q, D = 3, 9, 5, 2, 4, 16
BANK = synthetic_bank(N, 0, n, 6, D, held_out_per_class=2)
METHODS = [name for name in names() if find(name) is not WDAE]  # it looks at values as it goes


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices; single numbers on the CPU go anywhere, as on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if len({x.device for x in tensors if x.device == META or x.dim() > 0}) > 1:
            raise RuntimeError(f"{func} got tensors of two devices")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _one_device() -> Iterator[None]:
    with OneDevice():
        yield


@pytest.fixture(autouse=True)
def _no_values_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    monkeypatch.setattr("wdae.nn.ridge.bool", lambda sound: True, raising=False)
    monkeypatch.setattr("wdae.nn.logistic.bool", lambda done: False, raising=False)


def method_on_meta(name: str) -> LearnedMethod | None:
    if not issubclass(find(name), LearnedMethod):
        return None
    method = make(name, dim=D, n_base=N)
    assert isinstance(method, LearnedMethod)
    return method.to(META)


def on_meta(method: Method) -> Method:
    """A method without parameters, the statistics that it has taken of base classes moved."""
    for key, value in vars(method).items():
        if isinstance(value, Tensor):
            setattr(method, key, value.to(META))
    return method


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=META)


def test_devices_are_not_mixed_unseen() -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        randn(2, 3) @ torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="two devices"):
        randn(2, 3)[torch.tensor([1, 0])]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("masked", [False, True])
def test_it_scores_where_the_queries_lie(name: str, masked: bool) -> None:
    learned = method_on_meta(name)
    method = on_meta(prepared(make(name), BANK)) if learned is None else learned.eval()
    mask = torch.ones(E, n, K, dtype=torch.bool, device=META) if masked else None
    for joint in (False, True) if method.joint else (False,):
        with torch.no_grad():
            scorer = method.on(BaseClasses(randn(N, D))).adapt(Support(randn(E, n, K, D), mask), joint)
            scores = scorer(randn(E, Q, D))
        assert scores.device == META and scores.shape == (E, Q, n + (N if joint else 0))


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(find(name), LearnedMethod)])
def test_it_trains_where_the_batch_lies(name: str) -> None:
    method = method_on_meta(name)
    assert method is not None
    learned = [p for p in method.parameters() if p.requires_grad]
    if not learned:
        pytest.skip("nothing is learned by gradients")
    integers = {"dtype": torch.int64, "device": META}
    batch = TrainingBatch(
        base=randn(E, N - n, D),
        novel_targets=randn(E, n, D),
        support=randn(E, n, K, D),
        support_mask=None,
        queries=randn(E, Q, D),
        labels=torch.zeros(E, Q, **integers),  # type: ignore[call-overload]
        base_classes=torch.zeros(E, N - n, **integers),  # type: ignore[call-overload]
        novel_classes=torch.zeros(E, n, **integers),  # type: ignore[call-overload]
    )
    method.train()(batch).total.backward()
    assert all(p.grad.device == META for p in learned if p.grad is not None)
