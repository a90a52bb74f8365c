from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from serve_help import picture, running

import wdae
from wdae.serve.client import ClientError
from wdae.serve.settings import Settings

RED, GREEN, BLUE = ([picture(colour, i) for i in range(8)] for colour in range(3))


def test_a_program_teaches_and_asks_and_two_teachers_lose_nothing(settings: Settings, tmp_path: Path) -> None:
    with running(settings) as url, wdae.Client(url) as client:
        assert client.about().me.role == "admin" and client.models() == []
        made = client.create_model("mine")
        model = made.id
        file = tmp_path / "red.png"
        file.write_bytes(RED[0])
        taught = client.teach(model, {"red": [file], "green": GREEN[:2]}, revision=0)
        assert taught.revision == 1 and [one.class_ for one in taught.added] == ["red", "green", "green"]
        with pytest.raises(ClientError, match="revision 1, not 0") as stale:
            client.teach(model, {"red": RED[1:2]}, revision=0)
        assert stale.value.status == 412 and stale.value.problem["request_id"]

        faults: list[Exception] = []

        def teacher(name: str, pictures: list[bytes]) -> None:
            try:
                with wdae.Client(url) as mine:
                    for one in pictures:
                        mine.teach(model, {name: [one]})
            except Exception as error:
                faults.append(error)

        threads = [threading.Thread(target=teacher, args=pair) for pair in (("red", RED[1:]), ("blue", BLUE))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        shown = client.model(model)
        assert {one.name: one.examples for one in shown.added} == {"red": 8, "green": 2, "blue": 8}
        assert shown.revision == 1 + 7 + 8 == len(client.history(model).items)

        # What was asked together was answered together, and each got the answer to its own picture.
        many = [picture(i % 3, 20 + i) for i in range(12)]
        names = [
            one.prediction.probabilities[0].class_
            for one in client.predict_many(model, many)
            if one.prediction
        ]
        alone = [client.predict(model, one, top=1).probabilities[0].class_ for one in many[:3]]
        assert names == ["red", "green", "blue"] * 4 and alone == names[:3]

        ids = {one.name: one.id for one in client.classes(model, "added")}
        assert len(client.examples(model, ids["blue"])) == 8
        assert client.rename(model, ids["blue"], "navy") == 17
        some = [client.examples(model, ids["blue"])[0].picture]
        assert client.move(model, some, "red") == 18 and client.remove(model, some) == 19
        assert client.merge(model, [ids["blue"]], ids["red"]) == 20
        assert client.undo(model, 16) == 21 and client.undo(model) == 22 and client.redo(model) == 23
        assert client.cost(model).base_before and client.insight(model).total == 3
        assert len(client.map(model)) == 67 and client.explain(model, RED[0]).sentences
        assert len(client.next(model, many).items) == 12
        packed = client.download(model, tmp_path / "model.zip")
        assert client.import_model(packed, "again").revision == 1
        client.delete_model(model)
        with pytest.raises(ClientError, match="there is no model"):
            client.model(model)
        counted = httpx.get(f"{url}/metrics").text
        assert "wdae_predictions_total" in counted and "wdae_batch_pictures_bucket" in counted
    with pytest.raises(ClientError, match="cannot be reached"):
        wdae.Client(url).models()
