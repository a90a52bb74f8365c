"""What holds for every operation: examples, problems, ids of requests; and what several servers share."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient
from postgres_server import PostgresServer
from serve_help import new_model, picture, serving, teach, upload

from wdae.serve.app import create_app
from wdae.serve.settings import Settings


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = create_app(Settings()).openapi()["paths"]
    return [(m.upper(), path, what) for path, methods in paths.items() for m, what in methods.items()]


def test_openapi_has_an_example_for_every_operation() -> None:
    document = create_app(Settings()).openapi()
    assert document["openapi"].startswith("3.1")
    found = operations()
    assert len(found) > 35
    for method, path, what in found:
        bodies = [what.get("requestBody", {}), *(what["responses"][s] for s in what["responses"] if s < "3")]
        media = [one for body in bodies for one in body.get("content", {}).values()]
        binary = any(one.get("schema", {}).get("format") == "binary" for one in media)
        nothing = set(what["responses"]) & {"204"}
        assert binary or nothing or any("example" in one for one in media), (method, path)
        for parameter in what.get("parameters", []):
            if parameter["in"] == "path":
                assert parameter["schema"].get("examples"), (path, parameter["name"])
        assert what.get("description"), (method, path)
        assert "application/problem+json" in what["responses"]["4XX"]["content"]


def test_a_problem_has_the_sentence_and_the_id_of_its_request(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "wdae.serve.request"):
        lost = client.get("models/none", headers={"X-Request-ID": "mine-1"})
    assert lost.status_code == 404 and lost.headers["X-Request-ID"] == "mine-1"
    assert lost.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no model 'none'; GET /api/v1/models lists those there are",
        "instance": "/api/v1/models/none",
        "request_id": "mine-1",
    }
    facts = [record.__dict__["facts"] for record in caplog.records if "facts" in record.__dict__]
    assert facts[-1] | {"ms": 0} == {"method": "GET", "path": "/api/v1/models/none", "status": 404, "ms": 0}
    forged = client.get("models", headers={"X-Request-ID": 'a"b<c>'})
    assert forged.headers["X-Request-ID"] != 'a"b<c>'
    bad = client.post("models", json={"name": "", "extra": 1})
    assert bad.status_code == 422 and {one["where"] for one in bad.json()["errors"]} == {
        "body.name",
        "body.extra",
    }
    assert client.get("nothing/here").headers["content-type"] == "application/problem+json"


def test_a_change_is_seen_by_every_server_at_once(both: Settings) -> None:
    with serving(both) as one, serving(both) as other:
        model = new_model(one)
        for i, name in enumerate(("red", "green", "blue")):
            teach(one, model, **{name: [picture(i, 0)]})
            shown = other.post(f"{model}/predictions?only=added", files={"file": ("a.png", picture(i, 1))})
            assert (shown.json()["revision"], len(shown.json()["probabilities"])) == (i + 1, i + 1)
        assert other.post(f"{model}/undo").json() == {"revision": 4}
        assert [each["name"] for each in one.get(model).json()["added"]] == ["red", "green"]


def test_the_database_goes_and_comes_back(
    postgres_server: PostgresServer, postgres: str, settings: Settings
) -> None:
    with serving(settings.model_copy(update={"database": postgres})) as client:
        model = new_model(client)
        teach(client, model, red=[picture(0, 0)])
        asked = {"files": {"file": ("a.png", picture(0, 1))}}
        assert client.post(f"{model}/predictions", **asked).status_code == 200
        postgres_server.kill()
        try:
            ready = "http://localhost/ready"
            taught = upload(red=[picture(0, 2)])
            for path, options in (
                ("models", {}),
                (ready, {}),
                (f"{model}/predictions", asked),
                (f"{model}/examples", taught),
            ):
                gone = client.request("POST" if options else "GET", path, **options)
                assert gone.status_code == 503 and int(gone.headers["Retry-After"]) > 0, gone.text
                assert gone.headers["content-type"] == "application/problem+json"
            assert client.get("http://localhost/health").status_code == 200
        finally:
            postgres_server.start()
        assert client.post(f"{model}/predictions", **asked).json()["revision"] == 1
        assert teach(client, model, red=[picture(0, 2)])["revision"] == 2
