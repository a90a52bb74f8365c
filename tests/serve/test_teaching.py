from __future__ import annotations

from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from serve_help import new_model, picture, serving, teach, upload
from sqlalchemy import select

from wdae.classifier.model import Model
from wdae.serve.database.tables import HeadRow
from wdae.serve.engine import Engine, Question, answers, heads
from wdae.serve.service import Service
from wdae.serve.settings import Settings

RED, GREEN, BLUE = ([picture(colour, i) for i in range(3)] for colour in range(3))


def counts(client: TestClient, model: str) -> dict[str, int]:
    return {one["name"]: one["examples"] for one in client.get(model).json()["added"]}


def state(client: TestClient, model: str) -> dict[str, list[str]]:
    """All examples of all classes, and the names of those without."""
    classes = client.get(f"{model}/classes?kind=added").json()["items"]
    base = [one for one in client.get(f"{model}/classes?kind=base").json()["items"] if one["examples"]]
    return {
        one["name"]: sorted(
            each["picture"] for each in client.get(f"{model}/classes/{one['id']}/examples").json()["items"]
        )
        for one in [*classes, *base]
    }


def test_nothing_taught_is_nothing_created(anywhere: TestClient, own_model: str) -> None:
    """And who uploads is not told what to install: that is for who runs the service."""
    heic = b"\x00\x00\x00\x18ftypheic" + bytes(12)
    shown = {"files": [("files", ("a.heic", heic)), ("files", ("b.txt", b"no"))], "data": {"class": "cat"}}
    answer = anywhere.post(f"{own_model}/examples", **shown)
    assert answer.status_code == 200, answer.text
    assert answer.json()["added"] == [] and len(answer.json()["refused"]) == 2
    assert "saved as JPEG" in answer.json()["refused"][0]["reason"] and "pip" not in answer.text
    assert anywhere.get(own_model).json()["revision"] == 0
    assert anywhere.get(own_model).json()["added"] == []


def test_every_change_and_its_undoing_on_both_databases(anywhere: TestClient, own_model: str) -> None:
    """A walk through all changes; then every revision is returned to, and is what it was."""
    client, model = anywhere, own_model
    shown = upload(red=RED, green=GREEN)
    shown["files"].append(("files", ("notes.txt", b"hello")))
    shown["data"]["classes"].append("red")
    taught = client.post(f"{model}/examples", **shown)
    assert taught.status_code == 201, taught.text
    assert [len(taught.json()[key]) for key in ("added", "refused")] == [6, 1]
    assert taught.json()["refused"][0]["file"] == "notes.txt"
    states: list[Any] = [{}, state(client, model)]

    def changed(response: Any) -> Any:
        assert response.status_code in (200, 201), response.text
        states.append(state(client, model))
        assert client.get(model).json()["revision"] == len(states) - 1
        return response.json()

    ids = {one["name"]: one["id"] for one in client.get(model).json()["added"]}
    assert client.post(
        f"{model}/predictions", files={"file": ("new.png", picture(0, 9))}
    ).json()["prediction"] == "red"  # fmt: skip
    changed(client.post(f"{model}/classes", json={"name": "blue"}))
    changed(client.patch(f"{model}/classes/{ids['red']}", json={"name": "crimson"}))
    some = states[-1]["crimson"][:1]
    changed(client.patch(f"{model}/examples", json={"pictures": some, "to": "blue"}))
    changed(client.request("DELETE", f"{model}/examples", json={"pictures": states[-1]["green"][:1]}))
    base = client.get(f"{model}/classes?kind=base&search=robin").json()["items"][0]
    changed(client.post(f"{model}/classes/merge", json={"from": [ids["green"]], "into": base["id"]}))
    changed(client.patch(model, json={"novel_share": 0.3}))
    changed(client.delete(f"{model}/classes/{ids['red']}"))
    assert set(states[-1]) == {"blue", "robin"}
    sentences = [one["sentence"] for one in client.get(f"{model}/history").json()["items"]][::-1]
    assert sentences == [
        "taught red × 3, green × 3",
        "made blue",
        "renamed red to crimson",
        "moved 1 picture to blue",
        "took out green × 1",
        "merged green into robin",
        "expects 30 % of pictures to be of added classes",
        "took out crimson",
    ]
    before = list(states)
    for number in (3, 0, 8, 5, 1, 7, 2, 4, 6):
        changed(client.post(f"{model}/undo", json={"to": number}))
        assert states[-1] == before[number], number
        share = client.get(model).json()["novel_share"]
        assert share == (0.3 if number >= 7 else None)
    line = client.get(f"{model}/history").json()
    assert [one["number"] for one in line["items"] if one["in_effect"]] == [6, 5, 4, 3, 2, 1]
    changed(client.post(f"{model}/undo"))
    assert states[-1] == before[5]
    changed(client.post(f"{model}/redo"))
    changed(client.post(f"{model}/redo"))
    assert states[-1] == before[7]
    assert client.post(f"{model}/undo", json={"to": 99}).status_code == 404
    first = client.get(f"{model}/pictures/{before[1]['red'][0]}")
    assert (first.status_code, first.headers["content-type"]) == (200, "image/jpeg")


def test_deleted_for_good_is_gone_from_history_database_and_storage(
    anywhere: TestClient, own_model: str
) -> None:
    client, model = anywhere, own_model
    teach(client, model, red=RED, secret=BLUE)
    ids = {one["name"]: one["id"] for one in client.get(model).json()["added"]}
    pictures = state(client, model)
    one = pictures["red"][0]
    removal = {"pictures": [one], "forever": True}
    assert client.request("DELETE", f"{model}/examples", json=removal).status_code == 200
    assert client.get(f"{model}/pictures/{one}").status_code == 404
    assert client.delete(f"{model}/classes/{ids['secret']}?forever=true").status_code == 200
    assert client.post(f"{model}/undo", json={"to": 1}).status_code == 200
    assert state(client, model) == {"red": pictures["red"][1:]}
    for gone in pictures["secret"]:
        assert client.get(f"{model}/pictures/{gone}/thumbnail").status_code == 404
    assert "secret" not in client.get(f"{model}/history").text
    service = client.app.state.service  # type: ignore[attr-defined]
    assert service.pictures.pictures(model.removeprefix("models/")) == pictures["red"][1:]


def test_a_stale_change_is_refused_and_two_teachers_lose_nothing(client: TestClient, model: str) -> None:
    teach(client, model, red=RED[:1])
    late = client.post(f"{model}/classes", json={"name": "late"}, headers={"If-Match": '"0"'})
    assert late.status_code == 412 and "revision 1, not 0" in late.json()["detail"]
    assert client.post(f"{model}/undo", headers={"If-Match": "x"}).status_code == 400
    assert client.post(f"{model}/undo", headers={"If-Match": '"1"'}).status_code == 200


def test_the_same_picture_counts_once_and_is_of_one_class(client: TestClient, model: str) -> None:
    teach(client, model, red=RED)
    again = teach(client, model, red=RED[:1])
    assert again["revision"] == 1 and "count once" in again["notes"][0]
    other = teach(client, model, green=RED[:1])
    assert other["refused"][0]["reason"].startswith("is an example of 'red' already")
    assert counts(client, model) == {"red": 3}


def test_names_are_those_that_the_library_takes(client: TestClient, model: str) -> None:
    refused = teach(client, model, **{"a/b": RED[:1], "red": RED[1:2]})["refused"]
    assert "separates folders" in refused[0]["reason"] and counts(client, model) == {"red": 1}
    nothing = client.post(f"{model}/examples", **upload(**{"a/b": RED[:1]}))
    assert nothing.status_code == 422 and "separates folders" in nothing.json()["detail"]
    assert client.post(f"{model}/classes", json={"name": "unknown"}).status_code == 422
    taken = client.post(f"{model}/classes", json={"name": "robin"})
    assert taken.status_code == 409 and "exists already" in taken.json()["detail"]
    assert client.delete(f"{model}/classes/b0").status_code == 409
    assert client.delete(f"{model}/classes/nobody").status_code == 404


def test_the_classifier_of_many_examples_is_kept_and_goes_with_a_picture_that_is_deleted(
    both: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "WORTH", 3)
    built: list[Model] = []
    build = Model._build_head
    monkeypatch.setattr(Model, "_build_head", lambda self: (built.append(self), build(self))[1])
    with serving(both) as client:
        model = new_model(client)
        red = teach(client, model, red=[picture(0, i) for i in range(3)], green=[picture(1, 0)])
        here: Service = client.app.state.service  # type: ignore[attr-defined]
        vectors = here.engine.current(model.removeprefix("models/")).features
        said = here.engine.current(model.removeprefix("models/")).model.scores(vectors)

        def opened() -> int:
            """How many classifiers another process would fit, until it has answered."""
            built.clear()
            other = Engine(here.database, here.starting)
            loaded = other.current(model.removeprefix("models/"))
            assert torch.equal(loaded.model.scores(vectors), said)
            assert [one.prediction for one in answers(loaded, vectors[:1], Question())]
            other.close()
            return len(built)

        assert opened() == 0
        with here.database.writing() as session:
            row = session.scalars(select(HeadRow)).one()
            row.content = row.content[:-4] + b"\0\0\0\0"  # altered: not believed
        assert opened() == 1 and opened() == 0
        body = {"pictures": [red["added"][0]["picture"]], "forever": True}
        assert client.request("DELETE", f"{model}/examples", json=body).status_code == 200
        with here.database.reading() as session:
            assert session.scalars(select(HeadRow)).all() == []
