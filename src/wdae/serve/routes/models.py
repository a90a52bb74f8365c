"""Models: list, make, change, remove."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from wdae.classifier.names import shorten
from wdae.serve import deletion
from wdae.serve.database.connection import now
from wdae.serve.database.revisions import model_row, new_id
from wdae.serve.database.tables import ClassName, ClassRow, ModelRow, Revision
from wdae.serve.engine.starting import Starting
from wdae.serve.problems import ConflictError
from wdae.serve.routes.classes import class_items
from wdae.serve.schemas import BackboneOut, ModelChange, ModelItem, ModelOut, Models, NewModel
from wdae.serve.service import Admin, CurrentService, IfMatch, ModelId, Reader, Service, Teacher
from wdae.serve.teaching import Teaching

router = APIRouter(prefix="/models", tags=["models"])


@router.get("")
def list_models(service: CurrentService, me: Reader) -> Models:
    """The models there are."""
    with service.database.reading() as session:
        rows = list(session.scalars(select(ModelRow).order_by(ModelRow.created, ModelRow.id)))
        taught = select(ClassName.model, func.count()).join(
            ClassRow, (ClassRow.model == ClassName.model) & (ClassRow.id == ClassName.class_id)
        )
        wanted = taught.where(ClassName.until.is_(None), ~ClassRow.base).group_by(ClassName.model)
        counts = {row[0]: row[1] for row in session.execute(wanted)}
    return Models(
        items=[
            ModelItem(
                id=row.id,
                name=row.name,
                revision=row.revision,
                base_classes=len(service.starting.get(row.starting).model.base.names),
                added=counts.get(row.id, 0),
                starting=row.starting,
                created=row.created,
            )
            for row in rows
        ]
    )


@router.post("", status_code=201)
def make_model(service: CurrentService, me: Admin, new: NewModel) -> ModelOut:
    """Make a model: a ready one to start from, nothing taught yet."""
    return describe(service, keep_model(service, new.name, service.starting.named(new.starting)))


def keep_model(service: Service, name: str, starting: Starting) -> str:
    """A row for a new model; its id."""
    row = ModelRow(id=new_id(), name=name, starting=starting.digest, revision=0, created=now())
    try:
        with service.database.writing() as session:
            session.add(row)
    except IntegrityError:
        raise ConflictError(f"a model is called {shorten(name)!r} already; choose another name") from None
    return row.id


@router.get("/{m}")
def get_model(service: CurrentService, me: Reader, m: ModelId, response: Response) -> ModelOut:
    """A model: its revision, classes that were added, settings, backbone."""
    found = describe(service, m)
    response.headers["ETag"] = f'"{found.revision}"'
    return found


@router.patch("/{m}")
def change_model(
    service: CurrentService, me: Teacher, m: ModelId, change: ModelChange, expected: IfMatch
) -> ModelOut:
    """Give a model another name, or say which share of pictures is expected to be of added classes."""
    if "novel_share" in change.model_fields_set:
        Teaching(service, m, me.name, expected).expect(change.novel_share)
    if change.name is not None:
        try:
            with service.database.writing() as session:
                model_row(session, m, lock=True).name = change.name
        except IntegrityError:
            raise ConflictError(f"a model is called {shorten(change.name)!r} already") from None
    return describe(service, m)


@router.delete("/{m}", status_code=204)
def delete_model(service: CurrentService, me: Admin, m: ModelId) -> None:
    """Delete a model for good, with all its pictures."""
    with service.database.writing() as session:
        session.delete(model_row(session, m, lock=True))
        deletion.note(session, m, [deletion.EVERYTHING])
    service.engine.forget(m)
    deletion.carry_out(service.database, service.pictures, m)


def describe(service: Service, model: str) -> ModelOut:
    """All that is said of a model."""
    loaded = service.engine.current(model)
    with service.database.reading() as session:
        row = model_row(session, model)
        made = session.get(Revision, (model, loaded.revision))
        name, created, share = row.name, row.created, made.novel_share if made else None
    backbone = loaded.starting.backbone
    return ModelOut(
        id=model,
        name=name,
        revision=loaded.revision,
        base_classes=len(loaded.model.base.names),
        added=[one for one in class_items(loaded) if one.kind == "added"],
        novel_share=share,
        backbone=BackboneOut(name=backbone.name, image_size=backbone.image_size, dim=loaded.model.base.dim),
        starting=loaded.starting.digest,
        created=created,
    )
