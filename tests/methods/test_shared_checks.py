"""Every registered method passes the shared checks of ``tests/helpers/method_checks.py``."""

from __future__ import annotations

import pytest
from method_checks import CHECKS, Check

from wdae.methods import find, names

PAIRS = [(check, name) for name in names() for check, concerns in CHECKS.items() if concerns(name)]


@pytest.mark.parametrize(("check", "name"), PAIRS, ids=[f"{name}-{check.__name__}" for check, name in PAIRS])
def test_method(check: Check, name: str) -> None:
    check(name)


def test_only_those_depend_on_order() -> None:
    """By design: labels stand in the nodes, examples are a sequence, and outputs have learned rows."""
    ordered = [name for name in names() if find(name).ordered]
    assert ordered == ["gnn", "snail", "shifted-neurons", "maml"]
