"""Whether the service is there and ready, and what it has been doing."""

from __future__ import annotations

import os

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sqlalchemy import func, select, text

from wdae.serve.database.tables import ModelRow
from wdae.serve.engine.starting import READY
from wdae.serve.schemas import About, Health, MeOut
from wdae.serve.service import CurrentService, Reader
from wdae.version import __version__

open_router = APIRouter(tags=["service"])
router = APIRouter(tags=["service"])


@open_router.get("/health")
async def health() -> Health:
    """Whether the process is alive."""
    return Health(status="ok")


@open_router.get("/ready")
def ready(service: CurrentService) -> Health:
    """Whether it can answer: 503 while the database is away."""
    with service.database.reading() as session:
        session.execute(text("SELECT 1"))
    return Health(status="ready")


@open_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": "wdae_predictions_total 12.0\n"}}}},
)
def metrics(me: Reader) -> Response:
    """For Prometheus."""
    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/about")
def about(service: CurrentService, me: Reader) -> About:
    """The service, its limits, and who asks."""
    with service.database.reading() as session:
        count = session.scalar(select(func.count()).select_from(ModelRow)) or 0
    return About(
        version=__version__,
        models=count,
        starting=list(READY),
        limits=service.settings.limits.model_dump(),
        me=MeOut(name=me.name, role=me.role),
        csrf=me.csrf,
    )
