"""What a model knows and what that cost: insight, map, cost, explanations, what to label next."""

from __future__ import annotations

import asyncio
from typing import Annotated

import torch
from anyio.to_thread import run_sync
from fastapi import APIRouter, File, Query, Request, UploadFile

from wdae.classifier.names import UNKNOWN
from wdae.errors import WdaeError
from wdae.serve.engine import Answer, Question
from wdae.serve.engine.insight import cost_of, insight_of, map_of, most_useful, sentences
from wdae.serve.routes.predictions import ONE_PICTURE, Asked, ask, one_picture, prediction, ready
from wdae.serve.schemas import Cost, ExplanationOut, Insight, Map, Next, NextItem, RefusedFile
from wdae.serve.service import CurrentService, ModelId, Offset, Reader
from wdae.serve.uploads import shown_name

router = APIRouter(prefix="/models/{m}", tags=["insight"])


@router.get("/insight")
def insight(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Insight:
    """For each added class: what it is confused with, whether more pictures would help, what looks odd."""
    return insight_of(service.engine.current(m), offset, limit)


@router.get("/map")
def class_map(service: CurrentService, me: Reader, m: ModelId) -> Map:
    """A place for each class, base and added; alike ones stand together, and base classes never move."""
    loaded = service.engine.current(m)
    return Map(revision=loaded.revision, points=map_of(loaded))


@router.get("/cost")
def cost(service: CurrentService, me: Reader, m: ModelId) -> Cost:
    """What the added classes cost the base classes: accuracy before and now, and changed answers."""
    return cost_of(service.engine.current(m))


@router.post("/explanations", openapi_extra=ONE_PICTURE)
async def explanation(
    service: CurrentService, me: Reader, m: ModelId, request: Request, question: Asked
) -> ExplanationOut:
    """Why a picture gets its answer."""
    name, data = await one_picture(request)
    answer = await ask(service, await ready(service, m), name, data, question)
    lines, about = await run_sync(sentences, answer)
    return ExplanationOut(sentences=lines, prediction=prediction(answer), about=about.as_json())


@router.post("/next")
async def what_next(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    files: Annotated[list[UploadFile], File(description="pictures without labels")],
) -> Next:
    """Which of unlabelled pictures to label next: those first whose labels would teach most."""
    loaded = await ready(service, m)
    question = Question(top=20, nearest=0)

    async def one(file: UploadFile) -> Answer | RefusedFile:
        name = shown_name(file.filename)
        try:
            return await ask(service, loaded, name, await file.read(), question)
        except WdaeError as error:
            return RefusedFile(file=name, reason=str(getattr(error, "reason", error)))

    found = await asyncio.gather(*(one(file) for file in files))
    answers = [(i, answer) for i, answer in enumerate(found) if isinstance(answer, Answer)]
    order: list[int] = []
    if answers:
        features = torch.stack([answer.feature for _, answer in answers])
        chances = [answer.prediction.probabilities for _, answer in answers]
        order = await run_sync(most_useful, loaded, features, chances)
    items = []
    for row in order:
        index, answer = answers[row]
        predicted = answer.prediction
        items.append(
            NextItem(
                index=index,
                file=shown_name(files[index].filename),
                prediction=UNKNOWN if predicted.unknown else predicted.classes[0],
                probability=predicted.probabilities[0],
                unknown=predicted.unknown,
            )
        )
    refused = [one for one in found if isinstance(one, RefusedFile)]
    return Next(revision=loaded.revision, items=items, refused=refused)
