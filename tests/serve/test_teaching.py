from __future__ import annotations

from fastapi.testclient import TestClient
from serve_help import picture, upload


def test_teach_ask_undo_redo(client: TestClient, model: str) -> None:
    shown = upload(red=[picture(0, i) for i in range(3)], green=[picture(1, i) for i in range(3)])
    shown["files"].append(("files", ("notes.txt", b"hello")))
    shown["data"]["classes"].append("red")
    taught = client.post(f"{model}/examples", **shown)
    assert taught.status_code == 201, taught.text
    assert [len(taught.json()[key]) for key in ("added", "refused")] == [6, 1]
    assert taught.json()["refused"][0]["file"] == "notes.txt"
    asked = client.post(f"{model}/predictions", files={"file": ("new.png", picture(0, 9))}).json()
    assert asked["prediction"] == "red" and asked["nearest"][0]["class"] == "red"
    assert client.post(f"{model}/undo").json() == {"revision": 2}
    assert client.get(model).json()["added"] == []
    assert client.post(f"{model}/redo").json() == {"revision": 3}
    assert {one["name"]: one["examples"] for one in client.get(model).json()["added"]} == {
        "red": 3,
        "green": 3,
    }
    again = client.post(f"{model}/redo")
    assert (again.status_code, again.headers["content-type"]) == (409, "application/problem+json")
    assert again.json()["detail"].startswith("nothing to redo")
