"""What jobs do: import a zip of pictures, classify many pictures, learn a model."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from wdae.classifier.names import check_name
from wdae.classifier.store import load
from wdae.errors import DataError
from wdae.printing import counted
from wdae.serve.database.tables import ModelRow
from wdae.serve.engine import Question, answers, embedded
from wdae.serve.jobs import Job, Work
from wdae.serve.routes.models import keep_model
from wdae.serve.routes.predictions import prediction
from wdae.serve.service import Service
from wdae.serve.teaching import Shown, Teaching
from wdae.serve.uploads import Refused, shown_name
from wdae.serve.uploads.archives import Entry, read_zip

_TAUGHT_AT_ONCE = 100
_ASKED_AT_ONCE = 256
_BYTES_AT_ONCE = 64 * 2**20
_NAMED = 1000  # refused files that are named; more are counted


def import_zip(service: Service, job: Job) -> str:
    """Teach the pictures of a zip: its folders are the classes, or all of it is one class."""
    assert job.model is not None
    class_name = job.payload.get("class")
    with closing(_pieces(service, job, _TAUGHT_AT_ONCE)) as pieces:
        for some in pieces:
            loaded = service.engine.current(job.model)
            named = [(entry, class_name or entry.folder) for entry in some]
            good = [(entry, name) for entry, name in named if not entry.refused and name]
            for entry, name in named:
                if entry.refused or not name:
                    _refuse(job, entry.file, entry.refused or "lies in no folder, which would be its class")
            read = service.decoders.read_all(
                [(shown_name(entry.file), entry.data) for entry, _ in good],
                loaded.starting.backbone.preprocessing,
            )
            for one in read:
                if isinstance(one, Refused):
                    _refuse(job, one.name, one.reason)
            kept = [
                (entry, name, one)
                for (entry, name), one in zip(good, read, strict=True)
                if not isinstance(one, Refused)
            ]
            if kept:
                features = embedded(loaded.starting, [one.pixels for _, _, one in kept])
                shown = [
                    Shown(shown_name(entry.file), name, one, features[i])
                    for i, (entry, name, one) in enumerate(kept)
                ]
                outcome = Teaching(service, job.model, job.who).teach(shown, quiet=True)
                for file, reason in outcome.refused:
                    _refuse(job, file, reason)
                job.result["added"] = job.result.get("added", 0) + len(outcome.added)
                job.result["revision"] = outcome.revision
    service.pictures.delete_incoming(job.id)
    taught = counted(job.result.get("added", 0), "picture")
    return f"{taught} taught, {job.result.get('refused_count', 0)} refused"


def predict_many(service: Service, job: Job) -> str:
    """Classify the pictures of a zip; the answers are lines of JSON, kept until the job is removed."""
    assert job.model is not None
    question = Question(**job.payload.get("question", {}))
    with closing(_pieces(service, job, _ASKED_AT_ONCE)) as pieces:
        for some in pieces:
            loaded = service.engine.current(job.model)
            rule = loaded.starting.backbone.preprocessing
            asked = [(shown_name(entry.file), entry.data) for entry in some if not entry.refused]
            read = iter(service.decoders.read_all(asked, rule, keep=False))
            found = [Refused(e.file, e.refused) if e.refused else next(read) for e in some]
            pixels = [one.pixels for one in found if not isinstance(one, Refused)]
            answered = iter(answers(loaded, embedded(loaded.starting, pixels), question) if pixels else [])
            lines = []
            for entry, one in zip(some, found, strict=True):
                file = shown_name(entry.file)
                if isinstance(one, Refused):
                    _refuse(job, file, one.reason)
                    lines.append(json.dumps({"file": file, "refused": one.reason}))
                else:
                    answer = prediction(next(answered)).model_dump(mode="json", by_alias=True)
                    lines.append(json.dumps({"file": file, "prediction": answer}))
            service.pictures.put_part(job.id, job.done, "".join(line + "\n" for line in lines).encode())
    service.pictures.delete_incoming(job.id)
    return f"{counted(job.done, 'picture')} classified, {job.result.get('refused_count', 0)} refused"


def learn(service: Service, job: Job) -> str:
    """Learn a model from a zip with a folder of pictures per class, by ``wdae learn`` in its own process."""
    with tempfile.TemporaryDirectory(prefix="wdae-learn-") as place:
        photos, output = Path(place, "photos"), Path(place, "model")
        job.done = 0  # unpacked anew: the last attempt's folder is gone
        rule = service.starting.named("resnet12").backbone.preprocessing
        with closing(_pieces(service, job, _TAUGHT_AT_ONCE, " read")) as pieces:
            for some in pieces:
                good = [entry for entry in some if not entry.refused and entry.folder]
                read = service.decoders.read_all([(shown_name(e.file), e.data) for e in good], rule)
                for entry, one in zip(good, read, strict=True):
                    if isinstance(one, Refused):
                        _refuse(job, one.name, one.reason)
                        continue
                    folder = photos / check_name(entry.folder)
                    folder.mkdir(parents=True, exist_ok=True)
                    number = len(list(folder.iterdir()))
                    (folder / f"{number:06d}.jpg").write_bytes(one.stored)
        command = [sys.executable, "-m", "wdae.cli.main", "learn", str(photos), "-o", str(output)]
        command += ["--backbone", str(job.payload.get("backbone", "embedded")), "--device", "cpu"]
        errors = Path(
            place, "stderr.txt"
        )  # not a pipe: one that nobody reads holds its writer up once it is full
        with errors.open("wb") as file:
            running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file
            )
        try:
            while running.poll() is None:
                try:
                    running.wait(2.0)
                except subprocess.TimeoutExpired:
                    job.step(job.done, "learning")  # ends here where the job was cancelled
        finally:
            running.kill()
            running.wait()
        if running.returncode != 0:
            lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
            raise DataError(lines[-1].replace(place, "…") if lines else "learning failed without a word")
        starting = service.starting.keep(load(output))
    job.result["model"] = _named_model(service, str(job.payload["name"]), starting.digest) or keep_model(
        service, str(job.payload["name"]), starting
    )
    service.pictures.delete_incoming(job.id)
    return f"learned {len(starting.model.base.names)} classes"


KINDS: dict[str, Work] = {"import_zip": import_zip, "predict_many": predict_many, "learn": learn}


def _pieces(service: Service, job: Job, size: int, done: str = "") -> Generator[list[Entry], None, None]:
    """The files of a job's zip, some at a time, from where the job is; each piece is noted as done."""
    with tempfile.TemporaryDirectory(prefix="wdae-job-") as place:
        file, limits = Path(place, "incoming.zip"), service.settings.limits
        try:
            service.pictures.fetch_incoming(job.id, file)
        except KeyError:
            raise DataError("what was uploaded for this job is gone; send it again") from None
        sizes = {"file_bytes": limits.picture_bytes, "all_bytes": limits.import_bytes}
        with closing(read_zip(file, files=limits.import_files, **sizes, skip=job.done)) as entries:
            while some := _next(entries, size):
                yield some
                job.step(job.done + len(some), f"{job.done + len(some)} of {job.total} pictures{done}")


def _next(entries: Iterator[Entry], size: int) -> list[Entry]:
    some: list[Entry] = []
    for entry in entries:
        some.append(entry)
        if len(some) == size or sum(len(one.data) for one in some) > _BYTES_AT_ONCE:
            break
    return some


def _refuse(job: Job, file: str, reason: str) -> None:
    job.result["refused_count"] = job.result.get("refused_count", 0) + 1
    named = job.result.setdefault("refused", [])
    if len(named) < _NAMED:
        named.append({"file": shown_name(file), "reason": reason})


def _named_model(service: Service, name: str, digest: str) -> str | None:
    """A model that an earlier attempt of the same job has made."""
    with service.database.reading() as session:
        return session.scalar(select(ModelRow.id).where(ModelRow.name == name, ModelRow.starting == digest))
