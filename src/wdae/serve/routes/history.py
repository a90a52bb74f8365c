"""History: every change, who and when; undo and redo."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from wdae.classifier.history import describe_share
from wdae.classifier.names import shorten
from wdae.printing import counted
from wdae.serve.database.revisions import model_row, redo_target
from wdae.serve.database.tables import ClassName, Revision
from wdae.serve.problems import ConflictError
from wdae.serve.schemas import Changed, History, RevisionOut, Undo
from wdae.serve.service import CurrentService, IfMatch, ModelId, Offset, Reader, Teacher
from wdae.serve.teaching import Teaching

router = APIRouter(prefix="/models/{m}", tags=["history"])
_GONE = "a class that was deleted for good"


@router.get("/history")
def history(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
) -> History:
    """Every change of a model, the latest first."""
    with service.database.reading() as session:
        revision = model_row(session, m).revision
        numbers = select(Revision.number, Revision.parent, Revision.state).where(Revision.model == m)
        tree = {number: (parent, state) for number, parent, state in session.execute(numbers)}
        line: set[int] = set()
        at = tree[revision][1] if revision else 0
        while at:
            line.add(at)
            at = tree[at][0]
        wanted = select(Revision).where(Revision.model == m).order_by(Revision.number.desc())
        rows = list(session.scalars(wanted.offset(offset).limit(limit)))
        names = _Names(session, m)
        try:
            redo_target(session, m, revision)
            can_redo = True
        except ConflictError:
            can_redo = False
        items = [
            RevisionOut(
                number=row.number,
                at=row.at,
                who=row.who,
                action=row.action,
                sentence=names.sentence(row),
                in_effect=row.number in line,
            )
            for row in rows
        ]
    return History(revision=revision, can_undo=bool(line), can_redo=can_redo, items=items)


@router.post("/undo")
def undo(
    service: CurrentService,
    me: Teacher,
    m: ModelId,
    expected: IfMatch,
    to: Annotated[Undo | None, Body()] = None,
) -> Changed:
    """Return to the state of any revision, or one step back. It is a change itself: nothing is lost."""
    return Changed(revision=Teaching(service, m, me.name, expected).undo(to.to if to else None))


@router.post("/redo")
def redo(service: CurrentService, me: Teacher, m: ModelId, expected: IfMatch) -> Changed:
    """Make the change again that was undone last."""
    return Changed(revision=Teaching(service, m, me.name, expected).redo())


class _Names:
    """What classes were called when; a class that was deleted for good has no name any more."""

    def __init__(self, session: Session, model: str) -> None:
        self._rows: dict[str, list[tuple[int, str]]] = {}
        columns = (ClassName.class_id, ClassName.since, ClassName.name)
        for class_id, since, name in session.execute(
            select(*columns).where(ClassName.model == model).order_by(ClassName.since)
        ):
            self._rows.setdefault(class_id, []).append((since, name))

    def at(self, class_id: str, number: int) -> str:
        rows = self._rows.get(class_id, [])
        names = [name for since, name in rows if since <= number] or [name for _, name in rows]
        return shorten(names[-1]) if names else _GONE

    def sentence(self, row: Revision) -> str:
        """What a change did."""
        number, what = row.number, row.summary
        counts = {self.at(c, number): n for c, n in what.get("classes", {}).items()}
        many = ", ".join(f"{name} × {n}" if n else name for name, n in counts.items())
        match row.action:
            case "teach" | "import":
                return f"taught {many}"
            case "new class":
                return f"made {many}"
            case "rename":
                return f"renamed {self.at(what['class'], number - 1)} to {self.at(what['class'], number)}"
            case "remove":
                return f"took out {many}"
            case "delete":
                return "deleted for good" + (
                    f": {counted(what['pictures'], 'picture')}" if "pictures" in what else ""
                )
            case "merge":
                merged = ", ".join(self.at(one, number) for one in what["from"])
                return f"merged {merged} into {self.at(what['into'], number)}"
            case "move":
                return f"moved {counted(what['pictures'], 'picture')} to {self.at(what['into'], number)}"
            case "set":
                return f"expects {describe_share(what['novel_share'])}"
            case "undo" | "redo":
                return f"returned to {'the start' if not what['to'] else 'revision ' + str(what['to'])}"
        return row.action
