"""Jobs: work that takes longer than a request."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["jobs"])
