"""Jobs on both databases: taken by one process at a time, gone on with after a kill, seen as they go."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from stranger_pictures import jpeg

from wdae.errors import DataError
from wdae.serve.database.connection import Database
from wdae.serve.jobs import (
    CANCELLED,
    DONE,
    FAILED,
    MOST_ATTEMPTS,
    QUEUED,
    RUNNING,
    Job,
    Jobs,
    LostError,
    Runner,
)
from wdae.serve.settings import Settings


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = request.getfixturevalue("postgres") if request.param == "postgres" else None
    made = Database(Settings(data=tmp_path, database=url).database_url)
    made.migrate()
    yield made
    made.close()


def claimed(jobs: Jobs) -> str:
    row = jobs.claim()
    assert row is not None
    return row.id


def test_a_job_is_taken_by_one_process(database: Database) -> None:
    for _ in range(6):
        Jobs(database).add("k", None, {}, "me")
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: claimed(Jobs(database)), range(6)))
    assert len(set(taken)) == 6 and Jobs(database).claim() is None


def test_what_a_killed_process_held_is_taken_up_where_it_was(database: Database) -> None:
    first, second = Jobs(database, lease=-1), Jobs(database)  # a minute that is over already
    job = first.add("k", None, {"a": 1}, "me", total=10)
    held = Job(first, first.claim())  # type: ignore[arg-type]
    held.result["added"] = 4
    held.step(4, "4 of 10")
    taken = second.claim()
    assert taken is not None and taken.id == job.id
    assert (taken.done, taken.result, taken.attempts) == (4, {"added": 4}, 2)
    with pytest.raises(LostError):  # the first was only slow; it must stop
        held.step(5, "5 of 10")
    assert second.claim() is None


def test_a_job_that_kills_its_process_each_time_is_given_up(database: Database) -> None:
    jobs = Jobs(database, lease=-1)
    job = jobs.add("k", None, {}, "me")
    for _ in range(MOST_ATTEMPTS):
        assert jobs.claim() is not None
    assert jobs.claim() is None
    assert jobs.get(job.id).state == FAILED and "given up" in jobs.get(job.id).message


def test_what_becomes_of_jobs(database: Database) -> None:
    jobs = Jobs(database)
    goes = threading.Event()

    def fails(_here: Any, _job: Job) -> str:
        raise DataError("the zip is empty")

    def breaks(_here: Any, _job: Job) -> str:
        raise ZeroDivisionError

    def lasts(_here: Any, job: Job) -> str:
        while True:
            goes.set()
            job.step(job.done + 1, "on and on")
            time.sleep(0.01)

    kinds = {"good": lambda _here, _job: "all done", "fails": fails, "breaks": breaks, "lasts": lasts}
    runner = Runner(None, jobs, kinds, every=0.05)  # type: ignore[arg-type]
    runner.start()
    try:
        ids = {kind: jobs.add(kind, None, {}, "me").id for kind in ("good", "fails", "breaks", "lasts")}
        assert until(lambda: jobs.get(ids["good"]).state == DONE and goes.is_set())
        assert until(lambda: jobs.get(ids["breaks"]).state == FAILED)
        assert jobs.get(ids["good"]).message == "all done"
        assert jobs.get(ids["fails"]).message == "the zip is empty"
        assert "defect" in jobs.get(ids["breaks"]).message
        assert until(lambda: jobs.get(ids["lasts"]).state == RUNNING)
        jobs.cancel(ids["lasts"])
        again = jobs.add("lasts", None, {}, "me").id
        assert until(lambda: jobs.get(again).done > 3)
        assert jobs.get(ids["lasts"]).state == CANCELLED
    finally:
        runner.stop()
    assert jobs.get(again).state == QUEUED  # for the next process


def until(true: Any, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def zipped(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def start(client: TestClient, model: str, entries: dict[str, bytes], **form: str) -> str:
    files = {"file": ("a.zip", zipped(entries), "application/zip")}
    begun = client.post(f"{model}/jobs", data=form, files=files)
    assert begun.status_code == 202, begun.text
    return str(begun.json()["id"])


def ended(client: TestClient, job: str) -> dict[str, Any]:
    """By server-sent events, as the page watches it."""
    last = {}
    with client.stream("GET", f"jobs/{job}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                last = json.loads(line[5:])
    return last


def test_a_zip_is_taught_and_asked_about(anywhere: TestClient, own_model: str) -> None:
    client, model = anywhere, own_model
    entries = {
        f"{name}/{i}.jpg": jpeg(seed=10 * s + i)
        for s, name in enumerate(["okapi", "zebra"])
        for i in range(3)
    }
    entries |= {
        "okapi/bad.jpg": b"no picture",
        "loose.jpg": jpeg(seed=99),
        "okapi/<b>\u202egpj.svg": b"<svg/>",
    }
    job = ended(client, start(client, model, entries, kind="import_zip"))
    assert (job["state"], job["done"], job["total"]) == ("done", 9, 9), job
    assert job["result"]["added"] == 6 and job["result"]["refused_count"] == 3
    reasons = {one["file"]: one["reason"] for one in job["result"]["refused"]}
    assert "not a picture" in reasons["okapi/bad.jpg"] and "no folder" in reasons["loose.jpg"]
    assert "\u202e" not in json.dumps(job, ensure_ascii=False)
    added = {one["name"]: one["examples"] for one in client.get(f"{model}").json()["added"]}
    assert added == {"okapi": 3, "zebra": 3}
    job = ended(client, start(client, model, entries, kind="predict_many", top="1"))
    lines = [json.loads(line) for line in client.get(f"jobs/{job['id']}/result").text.splitlines()]
    assert [line["file"] for line in lines][:2] == ["okapi/0.jpg", "okapi/1.jpg"] and len(lines) == 9
    asked = client.post(f"{model}/predictions", params={"top": 1, "nearest": 0}, files={"file": jpeg()})
    said, alone = (one["probabilities"][0] for one in (lines[0]["prediction"], asked.json()))
    assert said["class"] == alone["class"] and abs(said["probability"] - alone["probability"]) < 1e-4
    assert sum("refused" in line for line in lines) == 2
    assert client.delete(f"jobs/{job['id']}").status_code == 204
    assert client.get(f"jobs/{job['id']}").status_code == 404
    assert client.get(f"jobs/{job['id']}/result").status_code == 404
    assert list(client.app.state.service.pictures.parts(job["id"])) == []  # type: ignore[attr-defined]


def test_bad_zips_and_bad_names_are_refused_at_once(anywhere: TestClient, own_model: str) -> None:
    client, model = anywhere, own_model
    url = f"{model}/jobs"
    for data, form in ((b"no zip", {}), (zipped({}), {}), (zipped({"a.jpg": b""}), {"class": "../x"})):
        refused = client.post(url, data={"kind": "import_zip", **form}, files={"file": ("a.zip", data)})
        assert refused.status_code in (400, 422), refused.text
        assert refused.headers["content-type"] == "application/problem+json"
    assert (
        client.post(
            url, data={"kind": "format_disk"}, files={"file": ("a.zip", zipped({"a": b""}))}
        ).status_code
        == 422
    )


def test_a_class_that_is_no_name_is_refused_by_itself(anywhere: TestClient, own_model: str) -> None:
    client, model = anywhere, own_model
    entries = {"unknown/1.jpg": jpeg(seed=50), "fine/1.jpg": jpeg(seed=51), "a\x07b/1.jpg": jpeg(seed=52)}
    job = ended(client, start(client, model, entries, kind="import_zip"))
    assert job["state"] == "done" and job["result"]["added"] == 1 and job["result"]["refused_count"] == 2


def test_a_model_is_learned(client: TestClient) -> None:
    files = {"file": ("a.zip", zipped({f"class {i}/1.jpg": jpeg(seed=i) for i in range(2)}))}
    begun = client.post("jobs", data={"name": "learned"}, files=files)
    job = ended(client, begun.json()["id"])
    assert job["state"] == "done", job
    assert client.get(f"models/{job['result']['model']}").json()["base_classes"] == 2
