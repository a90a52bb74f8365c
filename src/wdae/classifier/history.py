"""What happened to a model since it was learned: a tree of changes, and the state each of them led to.

A change names what it added (classes and the rows of their examples) or removed, and the change it came
after. Nothing is ever taken out of the history: undoing moves the head back, so every past state can be
returned to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from wdae.errors import ModelError, StorageError

Kind = Literal["add", "remove", "merge", "rename", "set"]
State = dict[str, tuple[int, ...]]
"""Rows of the examples of each class that was added to, in the order in which the classes came."""

LEARNED = 0
"""The number of the state before any change."""


@dataclass(frozen=True)
class Change:
    """One change: ``added`` maps classes to rows of examples, ``removed`` lists classes taken out.

    A change of kind "set" says which share of pictures of added classes is expected from then on (None: as
    learned).

    >>> change = Change(1, 0, "add", "2024-05-01T12:00:00+00:00", {"okapi": (0, 1)})
    >>> change.describe(), change.apply({})
    ("added 'okapi' × 2", {'okapi': (0, 1)})
    """

    number: int
    parent: int
    kind: Kind
    time: str
    added: Mapping[str, Sequence[int]]
    removed: Sequence[str] = ()
    novel_share: float | None = None

    def apply(self, state: State) -> State:
        """The state after this change."""
        after = {name: rows for name, rows in state.items() if name not in set(self.removed)}
        for name, rows in self.added.items():
            after[name] = (*after.get(name, ()), *rows)
        return after

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Change:
        """From a manifest."""
        added = {name: tuple(rows) for name, rows in value["added"].items()}
        return cls(**{**value, "added": added, "removed": tuple(value["removed"])})

    def describe(self) -> str:
        """What it did, in words."""
        if self.kind == "set":
            return f"expects {describe_share(self.novel_share)}"
        if self.kind == "merge":
            return f"merged {', '.join(map(repr, self.removed))} into {', '.join(map(repr, self.added))}"
        if self.kind == "rename":
            return f"renamed {', '.join(map(repr, self.removed))} to {', '.join(map(repr, self.added))}"
        if self.kind == "remove":
            return f"removed {', '.join(map(repr, self.removed))}"
        return "added " + ", ".join(f"{name!r} × {len(rows)}" for name, rows in self.added.items())


def describe_share(share: float | None) -> str:
    """How often pictures of added classes are expected, in words.

    >>> describe_share(0.2)
    '20 % of pictures to be of added classes'
    """
    if share is None:
        return "as many pictures of added classes as cost base classes little (the default, half at most)"
    return f"{100 * share:.3g} % of pictures to be of added classes"


@dataclass(frozen=True)
class History:
    """All changes ever made, and the head: the number of the one that the model stands at.

    >>> history = History().extended("add", {"okapi": [0, 1]}).extended("remove", {}, ["okapi"])
    >>> history.state(), history.undone().state()
    ({}, {'okapi': (0, 1)})
    """

    changes: tuple[Change, ...] = ()
    head: int = LEARNED

    def extended(
        self,
        kind: Kind,
        added: Mapping[str, Sequence[int]],
        removed: Sequence[str] = (),
        novel_share: float | None = None,
    ) -> History:
        """With one more change after the head, which becomes the head."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        number = len(self.changes) + 1
        rows = {name: tuple(some) for name, some in added.items()}
        change = Change(number, self.head, kind, now, rows, tuple(removed), novel_share)
        return History((*self.changes, change), number)

    def undone(self) -> History:
        """One change back; undoing again goes further back."""
        if self.head == LEARNED:
            raise ModelError("nothing to undo: the model is as it was learned")
        return History(self.changes, self.changes[self.head - 1].parent)

    def redone(self) -> History:
        """One change forth: what was undone last; after another change, the newest of those that follow."""
        after = [change.number for change in self.changes if change.parent == self.head]
        if not after:
            raise ModelError("nothing to redo: no change was taken back since")
        return History(self.changes, after[-1])

    def at(self, number: int) -> History:
        """With the head at the state after change ``number`` (0: as learned)."""
        if not 0 <= number <= len(self.changes):
            raise ModelError(f"there is no change {number}; give 0 (as learned) to {len(self.changes)}")
        return History(self.changes, number)

    def line(self) -> list[Change]:
        """The changes that led to the head, the oldest first."""
        line: list[Change] = []
        number = self.head
        while number != LEARNED:
            line.append(self.changes[number - 1])
            number = line[-1].parent
        return line[::-1]

    def state(self) -> State:
        """Which classes have which examples at the head."""
        state: State = {}
        for change in self.line():
            state = change.apply(state)
        return state

    def novel_share(self) -> float | None:
        """The share that was set last; None where none was, or the default was set again."""
        set_last = [change.novel_share for change in self.line() if change.kind == "set"]
        return set_last[-1] if set_last else None

    def as_json(self) -> dict[str, Any]:
        """For a model's manifest."""
        changes = [asdict(change) for change in self.changes]
        for change in changes:
            if change["novel_share"] is None:  # as it was written before there was a share to set
                del change["novel_share"]
        return {"head": self.head, "changes": changes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], n_rows: int) -> History:
        """From a manifest; ``n_rows`` is how many examples the model has."""
        try:
            changes = tuple(Change.from_json(entry) for entry in value["changes"])
            history = cls(changes, value["head"]).at(value["head"])
            for number, change in enumerate(changes, start=1):
                rows = [row for rows in change.added.values() for row in rows]
                if change.number != number or not 0 <= change.parent < number:
                    raise ValueError(f"change {change.number} follows {change.parent}")
                if rows and not 0 <= min(rows) <= max(rows) < n_rows:
                    raise ValueError(f"change {number} speaks of example {max(rows)} of {n_rows}")
        except (KeyError, TypeError, ValueError, ModelError) as error:
            raise StorageError(f"the model's history is altered: {error}") from error
        return history
