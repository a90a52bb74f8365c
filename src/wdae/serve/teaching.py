"""What people do to a model: teach, rename, move, merge, take out, delete for good, undo."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from torch import Tensor

from wdae.classifier.cost import cost
from wdae.classifier.explain import warnings_about
from wdae.classifier.names import check_name, has_separator, lookalikes, shorten
from wdae.errors import ModelError, WdaeError
from wdae.printing import size_text
from wdae.serve import deletion
from wdae.serve.database.connection import now
from wdae.serve.database.revisions import RevisionChange, changing, delete_pictures, redo_target, undo_target
from wdae.serve.database.tables import ClassRow, FeatureRow, PictureRow, Placement
from wdae.serve.engine import Loaded
from wdae.serve.observe import TAUGHT
from wdae.serve.problems import ConflictError, NotFoundError
from wdae.serve.service import Service
from wdae.serve.uploads import DecodedPicture

_TRIED_OUT = 1  # class; it takes some twenty classifiers each, and of more at once the insight tells


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture that somebody sent to be an example: its file's name, class name, pixels and feature."""

    file: str
    name: str
    picture: DecodedPicture
    feature: Tensor


@dataclass
class Outcome:
    """What has become of an upload: (picture, class name, class id, file), (file, reason), sentences."""

    revision: int
    added: list[tuple[str, str, str, str]]
    refused: list[tuple[str, str]]
    notes: list[str]


class _Quota:
    """How many bytes of pictures a model may still keep."""

    def __init__(self, session: Session, model: str, most: int) -> None:
        used = select(func.coalesce(func.sum(PictureRow.size), 0)).where(PictureRow.model == model)
        self.model, self.most, self.used = model, most, session.scalar(used) or 0

    def refusal(self, session: Session, picture: str, one: Shown) -> str | None:
        """Count a picture; or why there is no room for it."""
        if session.get(PictureRow, (self.model, picture)) is not None:
            return None
        if self.used + len(one.picture.stored) > self.most:
            room = f"{size_text(self.used)} of {size_text(self.most)}"
            return f"there is no room: the model's pictures take {room}; delete some for good"
        self.used += len(one.picture.stored)
        return None


@dataclass(frozen=True)
class Teaching:
    """Changes of one model by one person."""

    service: Service
    model: str
    who: str
    expected: int | None = None

    def _changing(self, action: str) -> AbstractContextManager[RevisionChange]:
        return changing(self.service.database, self.model, self.who, action, self.expected)

    def teach(self, shown: Sequence[Shown], *, quiet: bool = False) -> Outcome:
        """Make pictures examples of classes, which are made where there are none of their names.

        Args:
            quiet: say nothing of what the classes resemble and cost, which takes longer than teaching many.
        """
        service, before = self.service, self.service.engine.current(self.model)
        base = before.starting.model.base
        ids = [hashlib.sha256(one.picture.stored).hexdigest() for one in shown]
        with service.database.writing() as session:  # what is put there and does not become an example goes
            deletion.note(session, self.model, ids)
        for picture, one in zip(ids, shown, strict=True):
            service.pictures.put(self.model, picture, one.picture.stored)
        done = Outcome(before.revision, [], [], [])
        with self._changing("teach") as change:
            names = change.names()
            known = {name: class_id for class_id, name in names.items()}
            placed = change.placed(ids)
            news: dict[str, str] = {}
            counts: dict[str, int] = {}
            there: dict[str, int] = {}
            quota = _Quota(change.session, self.model, service.settings.limits.model_bytes)
            for picture, one in zip(ids, shown, strict=True):
                try:
                    name = one.name if one.name in known else self._checked(before, one.name)
                except WdaeError as error:
                    done.refused.append((one.file, str(error)))
                    continue
                at = news.get(picture) or placed.get(picture)
                if at is not None and names.get(at) != name:
                    reason = (
                        f"is an example of {shorten(names.get(at, '?'))!r} already; move it, if it is none"
                    )
                    done.refused.append((one.file, reason))
                    continue
                refusal = quota.refusal(change.session, picture, one) if at is None else None
                if refusal is not None:
                    done.refused.append((one.file, refusal))
                    continue
                if name not in known:
                    known[name] = change.open_class(name, before.base_ids.get(name))
                    names[known[name]] = name
                done.added.append((picture, name, known[name], one.file))
                if at is not None:
                    there[name] = there.get(name, 0) + 1
                    continue
                self._keep(change, picture, one, before.starting.backbone_digest)
                news[picture] = known[name]
                counts[known[name]] = counts.get(known[name], 0) + 1
            change.place(news)
            deletion.take_back(change.session, self.model, [*news, *placed])
            change.summary = {"classes": counts}
            TAUGHT.inc(len(news))
        if done.refused:
            deletion.carry_out(service.database, service.pictures, self.model)
        after = service.engine.current(self.model)
        done.revision = max(change.number if change.is_change else change.before, before.revision)
        for name, n in there.items():
            done.notes.append(f"{shorten(name)}: {n} were there already, or given twice, and count once")
        if quiet:
            return done
        taught = [names[class_id] for class_id in counts]
        known_before = [*base.names, *before.model.added]
        for name, other in lookalikes([n for n in taught if n not in set(known_before)], known_before):
            done.notes.append(f"{name!r} is a class beside {other!r}; if they are one, merge them")
        for name in taught:
            if name in after.model.names and name not in before.base_ids:
                done.notes += warnings_about(after.model, name, try_out=len(taught) <= _TRIED_OUT)
        price = cost(after.model, before.model.head) if taught else None
        if price is not None:
            done.notes.append(price.as_text())
        return done

    def _keep(self, change: RevisionChange, picture: str, one: Shown, backbone: str) -> None:
        if change.session.get(PictureRow, (self.model, picture)) is None:
            kept = one.picture
            change.session.add(
                PictureRow(
                    model=self.model,
                    id=picture,
                    width=kept.width,
                    height=kept.height,
                    size=len(kept.stored),
                    thumbnail=kept.thumbnail,
                    created=now(),
                )
            )
            change.session.flush()
            if not self.service.pictures.has(self.model, picture):  # deleted for good while we waited
                self.service.pictures.put(self.model, picture, kept.stored)
        if change.session.get(FeatureRow, (self.model, picture, backbone)) is None:
            vector = one.feature.numpy().astype("<f4").tobytes()
            change.session.add(
                FeatureRow(model=self.model, picture=picture, backbone=backbone, vector=vector)
            )
            change.session.flush()

    def _checked(self, loaded: Loaded, name: str) -> str:
        """A name that a class may have."""
        name = loaded.starting.model.called(name.strip() or name)
        if name in loaded.base_ids:
            return name
        base = loaded.starting.model.base.names
        return check_name(name, any(has_separator(one) for one in base))

    def refuse_names(self, loaded: Loaded, names: Iterable[str]) -> None:
        """Raise where none of these names may be a class's."""
        refusal: WdaeError | None = None
        for name in names:
            try:
                if name not in loaded.ids:
                    self._checked(loaded, name)
            except WdaeError as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal

    def new_class(self, name: str) -> tuple[int, str, str]:
        """A class without examples; its revision, id and name."""
        loaded = self.service.engine.current(self.model)
        name = self._checked(loaded, name)
        with self._changing("new class") as change:
            self._refuse_taken(loaded, change, name)
            class_id = change.open_class(name)
            change.summary = {"classes": {class_id: 0}}
        return change.number, class_id, name

    def rename(self, class_id: str, name: str) -> tuple[int, str, str]:
        """Call a class otherwise."""
        loaded = self.service.engine.current(self.model)
        name = self._checked(loaded, name)
        with self._changing("rename") as change:
            names = change.names()
            self._added(loaded, names, class_id)
            if names[class_id] != name:
                self._refuse_taken(loaded, change, name)
                change.rename(class_id, name)
                change.summary = {"class": class_id}
        return change.row.revision, class_id, name

    def _refuse_taken(self, loaded: Loaded, change: RevisionChange, name: str) -> None:
        if name in loaded.base_ids or name in change.names().values():
            raise ConflictError(
                f"class {shorten(name)!r} exists already; choose another name, or merge the two"
            )

    def _added(self, loaded: Loaded, names: dict[str, str], class_id: str) -> str:
        if class_id in names and class_id not in set(loaded.base_ids.values()):
            return names[class_id]
        if class_id in loaded.names and class_id not in loaded.classes:
            raise ConflictError(
                f"{shorten(loaded.names[class_id])!r} is a base class, part of what the model was learned"
                " from; only classes that were added can be changed"
            )
        raise NotFoundError(f"there is no class {shorten(class_id)!r}; GET …/classes lists those there are")

    def remove_class(self, class_id: str, forever: bool) -> int:
        """Take a class out with its examples; ``forever``: from history and storage too."""
        loaded = self.service.engine.current(self.model)
        gone: list[str] = []
        with self._changing("delete" if forever else "remove") as change:
            names = change.names()
            if not forever or change.session.get(ClassRow, (self.model, class_id)) is None:
                self._added(loaded, names, class_id)
            change.close_classes([class_id])
            change.summary = {"classes": {class_id: None}}
            if forever:
                here = select(Placement.picture).where(
                    Placement.model == self.model, Placement.class_id == class_id
                )
                elsewhere = select(Placement.picture).where(
                    Placement.model == self.model, Placement.class_id != class_id
                )
                mine = change.session.scalars(here.where(Placement.picture.not_in(elsewhere)).distinct())
                gone = delete_pictures(change.session, self.model, list(mine))
                row = change.session.get(ClassRow, (self.model, class_id))
                change.session.delete(row)
                change.session.flush()
                change.summary, change.is_change = {}, True
        if gone:
            deletion.carry_out(self.service.database, self.service.pictures, self.model)
        return change.row.revision

    def merge(self, class_ids: Sequence[str], into: str) -> int:
        """Give the examples of classes to another class; they go."""
        loaded = self.service.engine.current(self.model)
        with self._changing("merge") as change:
            names = change.names()
            if into not in names and into not in loaded.names:
                raise NotFoundError(
                    f"there is no class {shorten(into)!r}; GET …/classes lists those there are"
                )
            rest = [one for one in dict.fromkeys(class_ids) if one != into]
            if not rest:
                name = names.get(into) or loaded.names[into]
                raise ModelError(f"nothing to merge into {shorten(name)!r}; name another class")
            for class_id in rest:
                self._added(loaded, names, class_id)
            if into not in names:
                change.open_class(loaded.names[into], into)
            moved = {p: into for p, class_id in change.placed().items() if class_id in rest}
            change.place(moved)
            change.close_classes(rest)
            change.summary = {"from": rest, "into": into}
        return change.number

    def move(self, pictures: Sequence[str], to: str) -> int:
        """Make examples those of another class, by its name."""
        loaded = self.service.engine.current(self.model)
        with self._changing("move") as change:
            known = {name: class_id for class_id, name in change.names().items()}
            placed = self._placed(change, pictures)
            moved = [picture for picture, at in placed.items() if known.get(to) != at]
            if moved:
                name = to if to in known else self._checked(loaded, to)
                target = known.get(name) or change.open_class(name, loaded.base_ids.get(name))
                change.place(dict.fromkeys(moved, target))
                change.summary = {"pictures": len(moved), "into": target}
        return change.row.revision

    def remove(self, pictures: Sequence[str], forever: bool) -> int:
        """Take examples out; ``forever``: from history and storage too."""
        gone: list[str] = []
        with self._changing("delete" if forever else "remove") as change:
            if forever:
                placed = change.placed(pictures)
                gone = delete_pictures(change.session, self.model, pictures)
                if not gone:
                    raise NotFoundError("there are no such pictures")
                change.is_change = bool(placed)
                change.summary = {"pictures": len(gone)}
            else:
                placed = self._placed(change, pictures)
                change.take_out(placed)
                counts: dict[str, int] = {}
                for class_id in placed.values():
                    counts[class_id] = counts.get(class_id, 0) + 1
                change.summary = {"classes": counts}
        if gone:
            deletion.carry_out(self.service.database, self.service.pictures, self.model)
        return change.row.revision

    def _placed(self, change: RevisionChange, pictures: Sequence[str]) -> dict[str, str]:
        placed = change.placed(pictures)
        missing = [picture for picture in pictures if picture not in placed]
        if missing:
            raise NotFoundError(f"picture {shorten(missing[0], 20)!r} is no example of this model")
        return placed

    def expect(self, share: float | None) -> int:
        """Expect this share of pictures to be of added classes from now on; None: as learned."""
        with self._changing("set") as change:
            change.is_change = change.novel_share != share
            change.novel_share = share
            change.summary = {"novel_share": share}
        return change.row.revision

    def undo(self, to: int | None) -> int:
        """Return to the state of a revision, or one step back."""
        with self._changing("undo") as change:
            target = undo_target(change.session, self.model, change.before) if to is None else to
            change.return_to(target)
            change.summary = {"to": target}
        return change.number

    def redo(self) -> int:
        """Make the change again that was undone last."""
        with self._changing("redo") as change:
            target = redo_target(change.session, self.model, change.before)
            change.return_to(target)
            change.summary = {"to": target}
        return change.number
