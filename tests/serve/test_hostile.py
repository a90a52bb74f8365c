"""Hostile uploads, names and paths through the API, on either kind of database and store."""

from __future__ import annotations

import json
import resource
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from stranger_pictures import gps_photo, jpeg, png_claiming

from wdae.serve.app import create_app
from wdae.serve.database.connection import Database
from wdae.serve.database.tables import Base, Deletion, PictureRow
from wdae.serve.limits import Limits
from wdae.serve.settings import Settings


def teach(client: TestClient, model: str, *files: tuple[str, bytes], name: str = "okapi") -> httpx.Response:
    return client.post(f"{model}/examples", files=[("files", file) for file in files], data={"class": name})


def store(client: TestClient) -> Any:
    return client.app.state.service.pictures  # type: ignore[attr-defined]


def database(client: TestClient) -> Database:
    return client.app.state.service.database  # type: ignore[attr-defined,no-any-return]


def kept(client: TestClient, model: str) -> list[str]:
    found: list[str] = store(client).pictures(model.rpartition("/")[2])
    return found


def test_bad_pictures_are_refused_by_themselves_and_not_kept(anywhere: TestClient, own_model: str) -> None:
    files = [
        ("good.jpg", jpeg(seed=1)),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"),
        ("drawing.jpg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"),
        ("bomb.png", png_claiming(60_000, 60_000)),
        ("page.html", b"<!doctype html><script>alert(1)</script>"),
        ("empty.jpg", b""),
        ("torn.jpg", jpeg(300, 300)[:900]),
        ("polyglot.jpg", jpeg(seed=2) + b"<script>alert(1)</script>"),
    ]
    answer = teach(anywhere, own_model, *files)
    assert answer.status_code == 201, answer.text
    assert [one["file"] for one in answer.json()["added"]] == ["good.jpg", "polyglot.jpg"]
    assert [one["file"] for one in answer.json()["refused"]] == [name for name, _ in files[1:7]]
    assert kept(anywhere, own_model) == sorted(one["picture"] for one in answer.json()["added"])
    for picture in kept(anywhere, own_model):
        served = anywhere.get(f"{own_model}/pictures/{picture}")
        assert served.headers["content-type"] == "image/jpeg" and b"script" not in served.content
        assert served.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in served.headers["content-security-policy"]


def test_where_a_photo_was_taken_is_not_kept(anywhere: TestClient, own_model: str) -> None:
    answer = teach(anywhere, own_model, ("holiday.jpg", gps_photo(turned=True))).json()
    picture = answer["added"][0]["picture"]
    stored = store(anywhere).get(own_model.rpartition("/")[2], picture)
    small = anywhere.get(f"{own_model}/pictures/{picture}/thumbnail").content
    for data in (stored, small, anywhere.get(f"{own_model}/pictures/{picture}").content):
        assert b"Exif" not in data and b"secret" not in data and data[:2] == b"\xff\xd8"
    with database(anywhere).reading() as session:
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)):
                assert "secret place" not in str(tuple(row))


FILE_NAMES = [
    "../../etc/passwd",
    "..\\..\\boot.ini",
    "/etc/passwd",
    "a\x00b.jpg",
    "<img src=x onerror=alert(1)>.jpg",
    "a\r\nSet-Cookie: x=1.jpg",
    "\u202egpj.exe",
    "x" * 1000,
    "%2e%2e%2fa.jpg",
    "con",
    "'; DROP TABLE models; --",
    "\x1b]0;owned\x07.jpg",
]


def test_names_of_files_are_shown_harmlessly_and_kept_nowhere(anywhere: TestClient, own_model: str) -> None:
    good = [(name, jpeg(seed=100 + i)) for i, name in enumerate(FILE_NAMES)]
    answer = teach(anywhere, own_model, *good, *((name, b"no picture") for name in FILE_NAMES))
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["added"]) == len(answer.json()["refused"]) == len(FILE_NAMES)
    for one in answer.json()["added"] + answer.json()["refused"]:
        assert one["file"].isprintable() and len(one["file"]) <= 200 and "\u202e" not in one["file"]
    assert all(len(picture) == 64 and picture.isalnum() for picture in kept(anywhere, own_model))
    with database(anywhere).reading() as session:
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)):
                assert "passwd" not in str(tuple(row)) and "onerror" not in str(tuple(row))


CLASS_NAMES = {
    "a/b": 0,
    "../x": 0,
    "a\\b": 0,
    "..": 0,
    "": 0,
    "   ": 0,
    "unknown": 0,
    "a\x00b": 0,
    "a\x1b[31m": 0,
    "a\nb": 0,
    "x" * 201: 0,
    "a\u2028b": 0,
    "<img src=x onerror=alert(1)>": 1,
    "'; DROP TABLE models; --": 1,
    "=HYPERLINK(1)": 1,
    "%2e%2e": 1,
    "a#b?c": 1,
    "okapi \u202e ipako": 1,
    "日本のオカピ": 1,
}


def test_names_of_classes_are_refused_or_kept_as_they_are(anywhere: TestClient, own_model: str) -> None:
    files = [("files", ("a.jpg", jpeg(seed=200 + i))) for i in range(len(CLASS_NAMES))]
    answer = anywhere.post(f"{own_model}/examples", files=files, data={"classes": list(CLASS_NAMES)})
    assert answer.status_code == 201, answer.text
    fine_ones = [name for name, fine in CLASS_NAMES.items() if fine]
    assert [one["class"] for one in answer.json()["added"]] == fine_ones
    for name, fine in CLASS_NAMES.items():
        made = anywhere.post(f"{own_model}/classes", json={"name": name})
        assert made.status_code == (409 if fine else 422), (name, made.text)
    names = {one["name"] for one in anywhere.get(own_model).json()["added"]}
    assert names == {name for name, fine in CLASS_NAMES.items() if fine}
    assert len(kept(anywhere, own_model)) == len(names)
    # Whatever a program does with them: in JSON they are text and nothing else.
    raw = anywhere.get(own_model)
    assert raw.headers["content-type"] == "application/json" and json.loads(raw.text)
    history = anywhere.get(f"{own_model}/history")
    assert history.status_code == 200


PATHS = [
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%5c..%5cwindows",
    "a%00b",
    "a%23b",
    "a%3fb",
    "%252e%252e%252f",
    "....//....//etc/passwd",
    "*",
    "%E2%80%AE",
    "a" * 3000,
]


@pytest.mark.parametrize(
    "template", ["models/{}", "{m}/pictures/{}", "{m}/classes/{}/examples", "jobs/{}", "jobs/{}/result"]
)
def test_paths_lead_nowhere(anywhere: TestClient, own_model: str, template: str) -> None:
    for path in PATHS:
        url = template.replace("{m}", own_model).replace("{}", path)
        answer = anywhere.get(url, follow_redirects=False)
        assert answer.status_code in (307, 404, 405, 422), (url, answer.status_code)
        assert b"root:" not in answer.content and "Traceback" not in answer.text


def everything(client: TestClient) -> str:
    with database(client).reading() as session:
        return "\n".join(
            str(tuple(row)) for table in Base.metadata.sorted_tables for row in session.execute(select(table))
        )


def test_a_picture_deleted_for_good_is_gone_everywhere(anywhere: TestClient, own_model: str) -> None:
    added = teach(anywhere, own_model, ("a.jpg", jpeg(seed=300)), ("b.jpg", jpeg(seed=301))).json()["added"]
    one, other = (item["picture"] for item in added)
    small = anywhere.get(f"{own_model}/pictures/{one}/thumbnail").content
    gone = anywhere.request("DELETE", f"{own_model}/examples", json={"pictures": [one], "forever": True})
    assert gone.status_code == 200, gone.text
    assert kept(anywhere, own_model) == [other]
    assert anywhere.get(f"{own_model}/pictures/{one}").status_code == 404
    assert one not in everything(anywhere) and one not in anywhere.get(f"{own_model}/history").text
    assert anywhere.post(f"{own_model}/undo", json={"to": 1}).status_code in (200, 409)
    assert one not in anywhere.get(f"{own_model}/classes/{added[0]['class_id']}/examples").text
    here = database(anywhere)
    if here.is_sqlite:  # not in free pages or the log either
        file = Path(here.engine.url.database or "")
        for path in (file, file.with_name(file.name + "-wal")):
            assert small not in path.read_bytes() and one.encode() not in path.read_bytes()


def test_a_class_deleted_for_good_is_gone_with_its_name(anywhere: TestClient, own_model: str) -> None:
    teach(anywhere, own_model, ("k.jpg", jpeg(seed=309)), name="stays")
    name = f"secret person {uuid.uuid4().hex}"
    added = teach(anywhere, own_model, ("a.jpg", jpeg(seed=310)), name=name).json()["added"]
    renamed = f"{name} too"
    class_id = added[0]["class_id"]
    assert anywhere.patch(f"{own_model}/classes/{class_id}", json={"name": renamed}).status_code == 200
    assert anywhere.delete(f"{own_model}/classes/{class_id}", params={"forever": True}).status_code == 200
    assert name not in everything(anywhere) and name not in anywhere.get(f"{own_model}/history").text
    assert added[0]["picture"] not in everything(anywhere) and len(kept(anywhere, own_model)) == 1
    here = database(anywhere)
    if here.is_sqlite:
        file = Path(here.engine.url.database or "")
        for path in (file, file.with_name(file.name + "-wal")):
            assert name.encode() not in path.read_bytes()


def test_a_deleted_model_leaves_nothing(anywhere: TestClient, own_model: str) -> None:
    teach(anywhere, own_model, ("a.jpg", jpeg(seed=320)))
    assert anywhere.delete(own_model).status_code == 204
    assert kept(anywhere, own_model) == [] and own_model.rpartition("/")[2] not in everything(anywhere)
    assert anywhere.get(own_model).status_code == 404


def test_what_a_killed_process_left_in_the_store_is_removed(anywhere: TestClient, own_model: str) -> None:
    """It had put a picture there, and died before it became an example; or the other way round."""
    from wdae.serve import deletion

    stays = teach(anywhere, own_model, ("a.jpg", jpeg(seed=330))).json()["added"][0]["picture"]
    model, here = own_model.rpartition("/")[2], database(anywhere)
    store(anywhere).put(model, "0" * 64, b"acknowledged to nobody")
    with here.writing() as session:
        deletion.note(session, model, ["0" * 64, stays])
    deletion.carry_out(here, store(anywhere))
    assert kept(anywhere, own_model) == [stays]
    with here.reading() as session:
        assert session.scalars(select(Deletion)).all() == []


def test_a_picture_that_is_taught_again_while_it_is_deleted_is_kept(
    anywhere: TestClient, own_model: str
) -> None:
    data = jpeg(seed=340)
    first = teach(anywhere, own_model, ("a.jpg", data)).json()["added"][0]["picture"]
    teach(anywhere, own_model, ("b.jpg", jpeg(seed=341)))
    body = {"pictures": [first], "forever": True}
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            again = pool.submit(teach, anywhere, own_model, ("a.jpg", data))
            pool.submit(anywhere.request, "DELETE", f"{own_model}/examples", json=body).result()
            assert again.result().status_code == 201
            with database(anywhere).reading() as session:
                row = session.get(PictureRow, (own_model.rpartition("/")[2], first))
            assert (row is not None) == (first in kept(anywhere, own_model))


def test_two_teachers_on_one_model(anywhere: TestClient, own_model: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda i: teach(anywhere, own_model, (f"{i}.jpg", jpeg(seed=400 + i)), name=f"class {i % 2}"),
                range(8),
            )
        )
    assert {one.status_code for one in answers} == {201}
    assert sorted(one.json()["revision"] for one in answers) == list(range(1, 9))
    added = anywhere.get(own_model).json()
    assert added["revision"] == 8 and [one["examples"] for one in added["added"]] == [4, 4]
    stale = anywhere.post(f"{own_model}/undo", json={}, headers={"If-Match": '"7"'})
    assert stale.status_code == 412 and anywhere.get(own_model).json()["revision"] == 8


def test_a_model_may_keep_so_much_and_no_more(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, limits=Limits(decoders=1, model_bytes=6000))
    opened = Database(settings.database_url)
    opened.migrate()
    opened.close()
    with TestClient(create_app(settings), base_url="http://localhost/api/v1") as client:
        model = f"models/{client.post('models', json={'name': 'small'}).json()['id']}"
        answer = teach(client, model, *[(f"{i}.jpg", jpeg(seed=500 + i)) for i in range(5)]).json()
        assert answer["added"] and answer["refused"] and "no room" in answer["refused"][0]["reason"]
        assert len(kept(client, model)) == len(answer["added"])
        again = teach(client, model, ("0.jpg", jpeg(seed=500))).json()
        assert again["added"] and not again["refused"]  # it is there already


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so much: what a full disk answers, but for the number of the error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_and_nothing_is_half_done(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, limits=Limits(decoders=1))
    opened = Database(settings.database_url)
    opened.migrate()
    opened.close()
    app = create_app(settings)
    with TestClient(app, base_url="http://localhost/api/v1", raise_server_exceptions=False) as client:
        model = f"models/{client.post('models', json={'name': 'm'}).json()['id']}"
        assert teach(client, model, ("a.jpg", jpeg(seed=600))).status_code == 201
        before = client.get(model).json()
        for size in (1000, 10_000, 4096):
            with full_disk(size):
                answer = teach(client, model, ("b.jpg", jpeg(400, 400, seed=601)))
                assert answer.status_code in (503, 507), answer.text
                assert "Retry-After" in answer.headers
                asked = client.post(f"{model}/predictions", files={"file": jpeg(seed=600)})
                assert asked.status_code == 200  # reading goes on
        assert client.get(model).json() == before
        assert teach(client, model, ("b.jpg", jpeg(400, 400, seed=601))).status_code == 201
        assert len(client.get(model).json()["added"]) == 1 and len(kept(client, model)) == 2
