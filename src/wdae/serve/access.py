"""Who may do what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Depends, Request

Role = Literal["read", "teach", "admin"]


@dataclass(frozen=True)
class Me:
    """Who asks."""

    name: str = "local"
    role: Role = "admin"


def needs(role: Role) -> Any:
    """A dependency: the caller must have this role, or a higher one."""

    def check(request: Request) -> Me:
        return Me()

    check.role = role  # type: ignore[attr-defined]
    return Depends(check)


Check = Callable[[Request], Me]
