from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from serve_help import picture, teach

import wdae
from wdae.classifier.cost import cost
from wdae.classifier.inputs import read_examples
from wdae.classifier.predictions import predictions

COLOURS = ("blue", "green", "red")


@pytest.fixture
def taught(client: TestClient, model: str) -> str:
    shown = {name: [picture(2 - i, k) for k in range(5)] for i, name in enumerate(COLOURS)}
    shown["red"][4] = picture(2, 40)  # a stray: it is blue
    teach(client, model, **shown)
    return model


def test_what_the_service_says_is_what_the_library_says(
    client: TestClient, taught: str, tmp_path: Path
) -> None:
    """The same pictures added to the same model by the library give the same answers, to the digit shown."""
    shown = tmp_path / "shown"
    for i, name in enumerate(COLOURS):
        (shown / name).mkdir(parents=True)
        for k in range(5):
            data = picture(2, 40) if (name, k) == ("red", 4) else picture(2 - i, k)
            (shown / name / f"{k}.png").write_bytes(data)
    ours = wdae.embedded_model()
    found = read_examples(ours, [shown], None)
    ours.add(found.features)
    new = [tmp_path / f"new-{i}.jpg" for i in range(6)]
    for i, file in enumerate(new):
        file.write_bytes(picture(i % 3, 50 + i, "JPEG"))
    assert ours.backbone is not None
    expected = predictions(ours, ours.backbone.features(new), top=5)
    files = [("files", (file.name, file.read_bytes())) for file in new]
    items = client.post(f"{taught}/predictions/batch", files=files).json()["items"]
    for item, one in zip(items, expected, strict=True):
        said = item["prediction"]
        assert [p["class"] for p in said["probabilities"]] == list(one.classes)
        assert said["unknown"] == one.unknown
        torch.testing.assert_close(
            torch.tensor([p["probability"] for p in said["probabilities"]]),
            torch.tensor(one.probabilities),
            rtol=1e-3,
            atol=1e-5,
        )
    price, shown = cost(ours), client.get(f"{taught}/cost").json()
    assert price is not None
    assert (shown["base_before"], shown["base_now"]) == (price.before, price.after)


def test_insight_map_cost_explanation_and_what_to_label_next(client: TestClient, taught: str) -> None:
    insight = client.get(f"{taught}/insight").json()
    assert [one["class"] for one in insight["classes"]] == list(COLOURS)
    assert all(one["expected"]["now"] <= one["expected"]["more"] for one in insight["classes"])
    strays = insight["classes"][2]["strays"]
    assert [one["looks_like"] for one in strays] == ["blue"]
    moved = client.patch(f"{taught}/examples", json={"pictures": [strays[0]["picture"]], "to": "blue"})
    assert moved.json() == {"revision": 2}
    assert not client.get(f"{taught}/insight").json()["classes"][2]["strays"]

    points = client.get(f"{taught}/map").json()["points"]
    assert len(points) == 67 and all(0 <= one[axis] <= 1 for one in points for axis in "xy")
    places = {(one["x"], one["y"]) for one in points}
    assert len(places) == 67
    client.post(f"{taught}/undo", json={"to": 0})
    assert client.get(f"{taught}/map").json()["points"] == [one for one in points if one["kind"] == "base"]
    client.post(f"{taught}/redo")

    shown = client.get(f"{taught}/cost").json()
    assert shown["changed_total"] == len(shown["changed"]) and "held-out pictures" in shown["sentence"]
    assert shown["changed_total"] >= sum(one["pictures"] for one in shown["confusions"])
    assert shown["taught_total"] == len(shown["taught"]) > 0
    assert all(one["picture"] for one in shown["taught"])
    asked = client.post(f"{taught}/explanations", files={"file": ("a.png", picture(1, 60))}).json()
    assert asked["about"]["name"] == "green"
    assert any(said.startswith("it looks most like green") for said in asked["sentences"])

    files = [("files", (f"{i}.png", picture(i, 70))) for i in (0, 1, 2)]
    files += [("files", ("again.png", picture(0, 70))), ("files", ("no.png", b"no"))]
    order = client.post(f"{taught}/next", files=files).json()
    assert sorted(one["index"] for one in order["items"]) == [0, 1, 2, 3]
    assert order["items"][-1]["file"] in ("0.png", "again.png")  # a copy of what was chosen teaches nothing
    assert order["refused"][0]["file"] == "no.png"


def test_a_stream_of_json_lines(client: TestClient, taught: str) -> None:
    import base64
    import json

    def lines() -> bytes:
        made = [
            {"file": f"{i}.png", "picture": base64.b64encode(picture(2 - i, 80)).decode()} for i in range(3)
        ]
        return b"\n".join(json.dumps(one).encode() for one in made) + b"\nnot json\n"

    headers = {"content-type": "application/x-ndjson"}
    answer = client.post(f"{taught}/predictions/stream?top=1", content=lines(), headers=headers)
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert [one.get("file") for one in found] == ["0.png", "1.png", "2.png", ""]
    assert [one["prediction"]["probabilities"][0]["class"] for one in found[:3]] == list(COLOURS)
    assert "no JSON" in found[3]["refused"]


def test_a_model_goes_out_as_a_folder_and_comes_back(client: TestClient, taught: str, tmp_path: Path) -> None:
    client.patch(taught, json={"name": "mine", "novel_share": 0.4})
    packed = client.get(f"{taught}/download")
    assert packed.headers["content-disposition"] == 'attachment; filename="mine.zip"'
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        archive.extractall(tmp_path / "model")
    model = wdae.load(tmp_path / "model")
    assert isinstance(model, wdae.Model)
    assert model.added == COLOURS and model.novel_share == 0.4
    assert all(example.picture is not None for example in model.examples)
    back = client.post("models/import", files={"file": ("again.zip", packed.content)})
    assert back.status_code == 201, back.text
    assert back.json()["name"] == "again" and back.json()["novel_share"] == 0.4
    other = f"models/{back.json()['id']}"
    one = {"file": ("a.png", picture(2, 90))}
    asked = [client.post(f"{path}/predictions", files=one).json() for path in (taught, other)]
    chances = [[one["probability"] for one in said["probabilities"]] for said in asked]
    assert chances[0] == pytest.approx(chances[1], rel=1e-4)
    cover = back.json()["added"][0]["cover"]
    assert client.get(f"{other}/pictures/{cover}/thumbnail").headers["content-type"] == "image/jpeg"
    bad = client.post("models/import", files={"file": ("a.zip", b"PK nothing")})
    assert bad.status_code == 422 and "zip" in bad.json()["detail"]
