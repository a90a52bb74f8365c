"""Kill the service at random moments while people teach: nothing that was acknowledged may be lost.

    python scripts/break_service.py --kills 100 [--postgres] [--seed 1]
    python scripts/break_service.py --away 30

Pictures are taught and deleted for good by several clients at once, while a decoder, a worker, the whole
server or PostgreSQL is killed (``kill -9``) and started again. At the end every acknowledged picture must be
there, its bytes those that its id says, an example of its class; every deleted one must be gone; nothing else
may lie in the store.

With ``--away`` PostgreSQL is gone for so many seconds while a client asks: each answer must be 503 with
Retry-After meanwhile, and the service, which nobody touches, must answer again afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/helpers"))
from postgres_server import PostgresServer
from running_service import RunningService
from stranger_pictures import jpeg

_SHARES = (4, 2, 2, 2)  # a server takes seconds to start


@dataclass
class Noted:
    """What the clients were told."""

    taught: dict[str, str] = field(default_factory=dict)  # picture: class
    deleted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)  # asked to be deleted, and no answer came
    answers: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.answers[what] = self.answers.get(what, 0) + 1
            self.acknowledged += what in ("teach 201", "delete 200")


def teach(
    service: RunningService, model: str, number: int, noted: Noted, end: threading.Event, seed: int
) -> None:
    """Teach and delete until told to stop."""
    draw = random.Random(f"{seed} {number}")
    name, serial = f"class {number % 3}", 0
    own: list[str] = []
    with service.client(timeout=120) as client:
        while not end.is_set():
            serial += 1
            try:
                if own and draw.random() < 0.2:
                    picture = own.pop(draw.randrange(len(own)))
                    with noted.lock:
                        noted.doubtful.add(picture)
                    body = {"pictures": [picture], "forever": True}
                    answer = client.request("DELETE", f"/models/{model}/examples", json=body)
                    if answer.status_code == 200:
                        with noted.lock:
                            noted.deleted.add(picture)
                            noted.taught.pop(picture)
                    noted.count(f"delete {answer.status_code}")
                else:
                    data = jpeg(48, 48, seed=1_000_000 * (number + 1) + serial)
                    answer = client.post(
                        f"/models/{model}/examples", files=[("files", ("a.jpg", data))], data={"class": name}
                    )
                    if answer.status_code == 201:
                        for one in answer.json()["added"]:
                            own.append(one["picture"])
                            with noted.lock:
                                noted.taught[one["picture"]] = name
                        for one in answer.json()["refused"]:
                            noted.count(f"refused: {one['reason'][:60]}")
                    noted.count(f"teach {answer.status_code}")
            except httpx.HTTPError as error:
                noted.count(type(error).__name__)
                end.wait(0.2)


def break_service(
    folder: Path, kills: int, *, postgres: bool, pictures: str | None = None, clients: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Do it; what was counted. An AssertionError says what was lost."""
    draw = random.Random(seed)
    database = PostgresServer() if postgres else None
    options = ["--workers", "2", "--database", database.create("wdae")] if database else []
    options += ["--pictures", pictures] if pictures else []
    service = RunningService(folder / "data", *options)
    noted, end = Noted(), threading.Event()
    try:
        with service.client() as client:
            model = client.get("/models").json()["items"][0]["id"]
        threads = [
            threading.Thread(target=teach, args=(service, model, i, noted, end, seed)) for i in range(clients)
        ]
        for thread in threads:
            thread.start()
        killed: dict[str, int] = {}
        kinds = ["decoder", "worker", "postgres", "server"] if database else ["decoder", "server"]
        for number in range(kills):
            # Under load, not while it starts.
            said, until = noted.acknowledged, time.monotonic() + 90
            while noted.acknowledged < said + 3 and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.5))
            kind = kinds[number % len(kinds)] if kills < 10 else draw.choices(kinds, _SHARES[: len(kinds)])[0]
            if kind == "postgres":
                assert database is not None
                database.kill()
                time.sleep(draw.uniform(0, 1))
                database.start()
            elif kind == "server":
                service.kill()
                service.start(wait=0)
            else:
                found = service.decoders() if kind == "decoder" else service.workers()
                if not found:  # it is just being started
                    continue
                try:
                    os.kill(draw.choice(found), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            killed[kind] = killed.get(kind, 0) + 1
            service.wait()
        end.set()
        for thread in threads:
            thread.join()
        if kills >= 10:
            service.kill()  # once more, so that what we see comes from disk
            service.start()
        lost = check(service, model, noted)
        assert not lost, f"{len(lost)} lost or not deleted: {lost[:5]}"
        return {
            "killed": killed,
            "taught": len(noted.taught),
            "deleted": len(noted.deleted),
            "answers": dict(sorted(noted.answers.items())),
        }
    finally:
        end.set()
        service.stop()
        if database:
            database.stop()


def without_database(folder: Path, seconds: float) -> dict[str, Any]:
    """Take PostgreSQL away for a while; what was answered before, meanwhile and after."""
    database = PostgresServer()
    service = RunningService(folder / "data", "--database", database.create("wdae"))
    counts: dict[str, int] = {}
    longest = 0.0

    def ask(client: httpx.Client, model: str, when: str, number: int) -> httpx.Response:
        nonlocal longest
        kind = ("look", "predict", "teach")[number % 3]
        began = time.monotonic()
        if kind == "look":
            answer = client.get(f"/models/{model}")
        else:
            path, field_ = ("predictions", "file") if kind == "predict" else ("examples", "files")
            data = {"class": "okapi"} if kind == "teach" else None
            files = {field_: ("a.jpg", jpeg(48, 48, seed=number))}
            answer = client.post(f"/models/{model}/{path}", files=files, data=data)
        longest = max(longest, time.monotonic() - began)
        key = f"{when}: {kind} {answer.status_code}"
        counts[key] = counts.get(key, 0) + 1
        return answer

    try:
        with service.client() as client:
            model = client.get("/models").json()["items"][0]["id"]
            taught = [ask(client, model, "before", number).status_code for number in range(6)].count(201)
            assert taught == 2, counts
            database.kill()
            until, number = time.monotonic() + seconds, 6
            while time.monotonic() < until:
                answer = ask(client, model, "away", number)
                assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0, answer.text
                number += 1
            assert httpx.get(f"{service.url}/health").status_code == 200
            database.start()
            began = time.monotonic()
            service.wait(30)
            back = time.monotonic() - began
            for later in range(number, number + 6):
                taught += ask(client, model, "after", later).status_code == 201
            (okapi,) = client.get(f"/models/{model}").json()["added"]
            assert okapi["examples"] == taught == 4, (okapi, counts)
        return {"answers": counts, "longest answer, s": round(longest, 2), "back after, s": round(back, 2)}
    finally:
        service.stop()
        database.stop()


def check(service: RunningService, model: str, noted: Noted) -> list[str]:
    """What is not as it was acknowledged."""
    faults = []
    with service.client() as client:
        classes = {one["name"]: one["id"] for one in client.get(f"/models/{model}").json()["added"]}
        there: dict[str, str] = {}
        for name, class_id in classes.items():
            offset = 0
            while items := client.get(
                f"/models/{model}/classes/{class_id}/examples", params={"offset": offset, "limit": 1000}
            ).json()["items"]:
                there |= {one["picture"]: name for one in items}
                offset += len(items)
        for picture, name in noted.taught.items():
            if picture in noted.doubtful:
                continue
            if there.get(picture) != name:
                faults.append(f"{picture} is no example of {name}")
                continue
            got = client.get(f"/models/{model}/pictures/{picture}")
            if got.status_code != 200 or hashlib.sha256(got.content).hexdigest() != picture:
                faults.append(f"{picture} is not what was stored ({got.status_code})")
        for picture in noted.deleted:
            if picture in there or client.get(f"/models/{model}/pictures/{picture}").status_code != 404:
                faults.append(f"{picture} was deleted for good and is there")
        store = service.data / "pictures" / model
        if store.is_dir():
            until = time.monotonic() + 20  # what killed processes left is removed soon after the start
            while (
                stray := {file.stem for file in store.iterdir() if file.suffix == ".jpg"} - set(there)
            ) and (time.monotonic() < until):
                time.sleep(0.2)
            faults += [f"{picture} lies in the store, an example of nothing" for picture in stray]
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--away", type=float, help="seconds without PostgreSQL, instead of kills")
    asked = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wdae-break-") as folder:
        found = (
            without_database(Path(folder), asked.away)
            if asked.away
            else break_service(
                Path(folder), asked.kills, postgres=asked.postgres, clients=asked.clients, seed=asked.seed
            )
        )
    print({"seconds": round(time.monotonic() - start)} | found)


if __name__ == "__main__":
    main()
