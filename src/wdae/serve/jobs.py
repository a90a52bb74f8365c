"""Jobs: work that takes longer than a request, kept in the database so that any process may take it up.

One queue serves both databases. A process takes the oldest job that nobody holds (`FOR UPDATE SKIP LOCKED` on
PostgreSQL, the write lock on SQLite) for a minute, and renews that while it works. What a killed process held
is free again a minute later, and goes on from the last step that was noted. Steps may be done twice, but
are never lost.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from wdae.errors import StorageError, WdaeError, first_line
from wdae.serve.database.connection import Database, now
from wdae.serve.database.tables import JobRow
from wdae.serve.problems import NotFoundError

if TYPE_CHECKING:
    from wdae.serve.service import Service

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
ENDED = frozenset({DONE, FAILED, CANCELLED})
LEASE = 60
"""Seconds for which a process holds a job without a sign of life."""
MOST_ATTEMPTS = 5
"""Times that a job is taken up: one that kills its process each time is given up."""

_TIDY_EVERY = 60.0

_log = logging.getLogger("wdae.serve.jobs")


class LostError(Exception):
    """The job was cancelled, or another process holds it."""


class _StoppedError(Exception):
    """The service is being stopped."""


class Jobs:
    """The jobs of a service, in its database.

    Args:
        worker: a name for this process; none other has it.
    """

    def __init__(self, database: Database, lease: int = LEASE) -> None:
        self.database, self.lease = database, lease
        self.worker = secrets.token_hex(8)
        self.arrived = threading.Event()

    def add(
        self, kind: str, model: str | None, payload: dict[str, Any], who: str, *, total: int = 0, id: str = ""
    ) -> JobRow:
        """Put a job into the queue."""
        row = JobRow(
            id=id or new_job_id(),
            kind=kind,
            model=model,
            state=QUEUED,
            done=0,
            total=total,
            message="waits for its turn",
            payload=payload,
            who=who,
            created=datetime.now(UTC).isoformat(timespec="microseconds"),  # the order of the queue
            updated=now(),
            lease=0,
            attempts=0,
        )
        with self.database.writing() as session:
            session.add(row)
        self.arrived.set()
        return row

    def get(self, job: str) -> JobRow:
        """A job."""
        with self.database.reading() as session:
            row = session.get(JobRow, job)
        return _there(row, job)

    def some(self, offset: int = 0, limit: int = 100) -> Sequence[JobRow]:
        """Jobs, the newest first."""
        newest = select(JobRow).order_by(JobRow.created.desc(), JobRow.id).offset(offset).limit(limit)
        with self.database.reading() as session:
            return session.scalars(newest).all()

    def cancel(self, job: str) -> JobRow:
        """End a job that has not ended; whoever works on it stops at its next step."""
        with self.database.writing() as session:
            row = _there(session.get(JobRow, job, with_for_update=True), job)
            if row.state not in ENDED:
                row.state, row.message, row.updated = CANCELLED, "cancelled", now()
        return row

    def remove(self, job: str) -> None:
        """Forget a job that has ended."""
        with self.database.writing() as session:
            row = session.get(JobRow, job)
            if row is not None and row.state in ENDED:
                session.delete(row)

    def claim(self) -> JobRow | None:
        """Take the oldest job that nobody holds."""
        at = int(time.time())
        free = or_(JobRow.state == QUEUED, and_(JobRow.state == RUNNING, JobRow.lease < at))
        oldest = select(JobRow).where(free).order_by(JobRow.created, JobRow.id).limit(1)
        with self.database.writing() as session:
            row = session.scalar(oldest.with_for_update(skip_locked=True))
            if row is None:
                return None
            row.attempts += 1
            row.updated = now()
            if row.attempts > MOST_ATTEMPTS:
                row.state = FAILED
                row.message = f"given up after {MOST_ATTEMPTS} attempts that ended without a word"
                return None
            row.state, row.worker, row.lease = RUNNING, self.worker, at + self.lease
        return row

    def note(self, job: str, **facts: Any) -> None:
        """Note how far a job is, and hold it further; LostError where it is not ours any more."""
        mine = and_(JobRow.id == job, JobRow.worker == self.worker, JobRow.state == RUNNING)
        facts |= {"updated": now(), "lease": int(time.time()) + self.lease}
        with self.database.writing() as session:
            found = session.execute(update(JobRow).where(mine).values(**facts))
            if found.rowcount == 0:  # type: ignore[attr-defined]
                raise LostError


class Job:
    """A job in the hands of whoever works on it.

    Args:
        end: once it is set, the work stops at its next step.
    """

    def __init__(self, jobs: Jobs, row: JobRow, end: threading.Event | None = None) -> None:
        self._jobs, self._end = jobs, end
        self.id, self.kind, self.model, self.who = row.id, row.kind, row.model, row.who
        self.payload, self.done, self.total = dict(row.payload), row.done, row.total
        self.result: dict[str, Any] = dict(row.result or {})

    def step(self, done: int, message: str) -> None:
        """Note that so much is done, for good: after an interruption the work goes on from here."""
        self.done = done
        self._jobs.note(self.id, done=done, message=message, result=self.result)
        if self._end is not None and self._end.is_set():
            raise _StoppedError

    def finish(self, message: str) -> None:
        """Note that the job is done."""
        self._jobs.note(self.id, state=DONE, done=self.done, message=message, result=self.result)


Work = Callable[["Service", Job], str]
"""Does a job and returns what to say of it at the end."""


class Runner:
    """A thread that takes up one job after another, and one that renews the hold on it."""

    def __init__(
        self,
        service: Service,
        jobs: Jobs,
        kinds: dict[str, Work],
        tidy: Callable[[], object] = lambda: None,
        every: float = 1.0,
    ) -> None:
        self.service, self.jobs, self.kinds, self.tidy, self.every = service, jobs, kinds, tidy, every
        self._tidied = -_TIDY_EVERY
        self._end = threading.Event()
        self._job: str | None = None
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("jobs", self._work), ("jobs-alive", self._stay_alive))
        ]

    def start(self) -> None:
        """Begin to take up jobs."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Take up no more; a job under way stops at its next step, and goes on another time."""
        self._end.set()
        self.jobs.arrived.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(seconds)

    def _work(self) -> None:
        while not self._end.is_set():
            try:
                row = self.jobs.claim()
            except SQLAlchemyError as error:  # the database is away; it will be back
                _log.warning("no job can be taken up: %s", first_line(error))
                self._end.wait(5 * self.every)
                continue
            if row is None:
                self._tidy()
                self.jobs.arrived.wait(self.every)
                self.jobs.arrived.clear()
                continue
            self.run(row)

    def _tidy(self) -> None:
        """Carry out deletions that a killed process left behind, now and then."""
        if time.monotonic() < self._tidied + _TIDY_EVERY:
            return
        self._tidied = time.monotonic()
        try:
            self.tidy()
        except (SQLAlchemyError, StorageError, OSError) as error:
            _log.warning("deletions wait: %s", first_line(error))

    def run(self, row: JobRow) -> None:
        """Do one job that was claimed."""
        self._job = row.id
        job = Job(self.jobs, row, self._end)
        try:
            message = self.kinds[row.kind](self.service, job)
            job.finish(message)
        except LostError:
            _log.info("job %s was cancelled or is another process's now", row.id)
        except _StoppedError:
            self._let_go(row.id)
        except (SQLAlchemyError, StorageError, OSError) as error:  # storage away or full: tried again later
            _log.warning("job %s is interrupted: %s", row.id, first_line(error))
            self._end.wait(5 * self.every)
            self._let_go(row.id, message=f"interrupted, will go on: {first_line(error)}")
        except WdaeError as error:
            self._fail(row.id, str(error))
        except Exception:
            _log.exception("defect in job %s", row.id)
            self._fail(row.id, "this is a defect of the service; its log has more")
        finally:
            self._job = None

    def _fail(self, job: str, message: str) -> None:
        try:
            self.jobs.note(job, state=FAILED, message=message)
        except (SQLAlchemyError, LostError):
            _log.warning("job %s failed, and that cannot be noted: %s", job, message)

    def _let_go(self, job: str, **facts: Any) -> None:
        try:
            self.jobs.note(job, state=QUEUED, **facts)
        except (SQLAlchemyError, LostError):
            _log.info("job %s is free when its minute is over", job)

    def _stay_alive(self) -> None:
        while not self._end.wait(self.jobs.lease / 4):
            job = self._job
            if job is None:
                continue
            try:
                self.jobs.note(job)
            except (SQLAlchemyError, LostError):
                continue  # the work itself will find out


def _there(row: JobRow | None, job: str) -> JobRow:
    if row is None:
        raise NotFoundError(f"there is no job {job!r:.80}; GET …/jobs lists those there are")
    return row


def new_job_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(12)
