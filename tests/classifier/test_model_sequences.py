"""hypothesis drives random sequences of changes against an oracle that keeps a dictionary of examples."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from wdae.classifier import BaseKnowledge, Model, load, save
from wdae.errors import ModelError

NAMES = st.sampled_from(["ant", "bee", "cow", "dog"])


class Oracle:
    """The simplest model of a model: states as dictionaries, a list of those to go back to."""

    def __init__(self) -> None:
        self.state: dict[str, list[int]] = {}
        self.past: list[dict[str, list[int]]] = []

    def go(self, state: dict[str, list[int]]) -> None:
        self.past.append(self.state)
        self.state = state

    def undo(self) -> None:
        self.state = self.past.pop()


def machine(base: BaseKnowledge) -> type[RuleBasedStateMachine]:
    """A state machine about models on this base."""
    examples = torch.randn(40, base.dim, generator=torch.Generator().manual_seed(1))
    queries = torch.randn(6, base.dim, generator=torch.Generator().manual_seed(2))

    class Changes(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.folder = Path(tempfile.mkdtemp())
            self.model = Model(base)
            self.oracle = Oracle()

        def teardown(self) -> None:
            shutil.rmtree(self.folder)

        @rule(name=NAMES, rows=st.lists(st.integers(0, 39), min_size=1, max_size=3), update=st.booleans())
        def add(self, name: str, rows: list[int], update: bool) -> None:
            if name in self.oracle.state and not update:
                with pytest.raises(ModelError, match="exists already"):
                    self.model.add({name: examples[rows]})
                return
            self.model.add({name: examples[rows]}, update=update)
            known = self.oracle.state.get(name, [])
            new = [row for row in dict.fromkeys(rows) if row not in known]  # an example counts once
            if new:  # nothing new is no change, and there is nothing to undo
                self.oracle.go({**self.oracle.state, name: known + new})

        @rule(name=NAMES)
        def remove(self, name: str) -> None:
            if name not in self.oracle.state:
                with pytest.raises(ModelError, match="no added class"):
                    self.model.remove([name])
                return
            self.model.remove([name])
            self.oracle.go({key: value for key, value in self.oracle.state.items() if key != name})

        @rule(name=NAMES, to=NAMES)
        def rename(self, name: str, to: str) -> None:
            state = dict(self.oracle.state)
            if name not in state or to in state:
                with pytest.raises(ModelError, match=r"no added class|exists already"):
                    self.model.rename(name, to)
                return
            self.model.rename(name, to)
            rows = state.pop(name)
            self.oracle.go({**state, to: rows})

        @precondition(lambda self: self.oracle.past)
        @rule()
        def undo(self) -> None:
            self.model.undo()
            self.oracle.undo()

        @rule()
        def save_and_load(self) -> None:
            save(self.model, self.folder / "model")
            self.model = load(self.folder / "model")

        @invariant()
        def agrees(self) -> None:
            state = self.oracle.state
            assert self.model.added == tuple(state)
            direct = Model(base)
            if state:
                direct.add({name: examples[rows] for name, rows in reversed(state.items())})
            place = {name: i for i, name in enumerate(direct.names)}
            order = [place[name] for name in self.model.names]
            assert torch.equal(self.model.scores(queries), direct.scores(queries)[:, order])

    return Changes


def test_any_sequence_of_changes_agrees_with_the_oracle(base: BaseKnowledge) -> None:
    options: dict[str, Any] = {"suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine(base),
        settings=settings(max_examples=25, stateful_step_count=12, deadline=None, **options),
    )
