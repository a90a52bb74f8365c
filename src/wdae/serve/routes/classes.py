"""Classes: list, make, rename, merge, take out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from wdae.classifier.names import folded
from wdae.serve.engine import Loaded
from wdae.serve.schemas import Changed, ChangedClass, Class, Classes, Kind, Merge, NewClass
from wdae.serve.service import ClassId, CurrentService, IfMatch, ModelId, Offset, Reader, Teacher
from wdae.serve.teaching import Teaching

router = APIRouter(prefix="/models/{m}/classes", tags=["classes"])


def class_items(loaded: Loaded) -> list[Class]:
    """All classes of a model: those that were added first, in the order of their coming, then base ones."""
    base = set(loaded.base_ids.values())
    covers: dict[str, str] = {}
    counts: dict[str, int] = {}
    for picture, class_id in loaded.placed.items():
        covers.setdefault(class_id, picture)
        counts[class_id] = counts.get(class_id, 0) + 1
    items = [
        Class(
            id=class_id,
            name=name,
            kind="base" if class_id in base else "added",
            examples=counts.get(class_id, 0),
            cover=covers.get(class_id),
        )
        for class_id, name in loaded.names.items()
    ]
    return sorted(items, key=lambda one: one.kind == "base")


@router.get("")
def list_classes(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    kind: Kind | None = None,
    search: Annotated[str, Query(max_length=200, description="letters that the name has")] = "",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Classes:
    """The classes of a model, those that were added first."""
    loaded = service.engine.current(m)
    items = [one for one in class_items(loaded) if kind in (None, one.kind)]
    if search:
        items = [one for one in items if folded(search) in folded(one.name)]
    return Classes(revision=loaded.revision, total=len(items), items=items[offset : offset + limit])


@router.post("", status_code=201)
def make_class(
    service: CurrentService, me: Teacher, m: ModelId, new: NewClass, expected: IfMatch
) -> ChangedClass:
    """Make a class without examples; it is known once it has one."""
    revision, class_id, name = Teaching(service, m, me.name, expected).new_class(new.name)
    return ChangedClass(revision=revision, id=class_id, name=name)


@router.post("/merge")
def merge_classes(
    service: CurrentService, me: Teacher, m: ModelId, merge: Merge, expected: IfMatch
) -> Changed:
    """Make one class of several: the examples go to the class ``into``, which may be a base class."""
    return Changed(revision=Teaching(service, m, me.name, expected).merge(merge.from_, merge.into))


@router.patch("/{c}")
def rename_class(
    service: CurrentService, me: Teacher, m: ModelId, c: ClassId, new: NewClass, expected: IfMatch
) -> ChangedClass:
    """Call a class otherwise."""
    revision, class_id, name = Teaching(service, m, me.name, expected).rename(c, new.name)
    return ChangedClass(revision=revision, id=class_id, name=name)


@router.delete("/{c}")
def remove_class(
    service: CurrentService, me: Teacher, m: ModelId, c: ClassId, expected: IfMatch, forever: bool = False
) -> Changed:
    """Take a class out with its examples; ``forever``: from history and storage too."""
    return Changed(revision=Teaching(service, m, me.name, expected).remove_class(c, forever))
