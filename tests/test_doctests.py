"""Every public name has an example in its documentation; pytest runs them all as doctests."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

PACKAGES = (
    "wdae",
    "wdae.backbones",
    "wdae.bank",
    "wdae.classifier",
    "wdae.data",
    "wdae.export",
    "wdae.methods",
    "wdae.nn",
)
OTHERS = (
    "wdae.classifier.embedded:embedded_backbone",
    "wdae.bank.embedded:embedded_bank",
    "wdae.classifier.embedded:embedded_model",
    "wdae.evaluation.measure:evaluate",
    "wdae.evaluation.protocol:nearest_mean_accuracy",
    "wdae.evaluation.results:Estimate",
    "wdae.calibration.step_size:choose_steps",
    "wdae.evaluation.table:ResultTable",
    "wdae.classifier.explain:explain",
    "wdae.nn.generate:initial_estimate",
    "wdae.nn.generate:refine",
    "wdae.classifier.picture_backbone:PictureBackbone",
)


def public() -> list[tuple[str, Any]]:
    found = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        things = [(name, getattr(module, name)) for name in module.__all__]
        found += [(f"{package}.{n}", t) for n, t in things if inspect.isclass(t) or inspect.isfunction(t)]
    for place in OTHERS:
        home, _, name = place.partition(":")
        found.append((f"{home}.{name}", getattr(importlib.import_module(home), name)))
    return found


@pytest.mark.parametrize(
    ("name", "thing"), public(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_public_name_has_an_example(name: str, thing: Any) -> None:
    texts = [thing.__doc__ or ""]
    if inspect.isclass(thing):
        members = [getattr(member, "__func__", member) for member in vars(thing).values()]
        texts += [member.__doc__ or "" for member in members if inspect.isfunction(member)]
    assert any(">>>" in text for text in texts), f"{name} has no example in its docstring"
