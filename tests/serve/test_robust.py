"""Killed, restarted, restored, asked what nobody thought of; short forms of what scripts do at length."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from break_service import break_service
from fuzz_service import fuzz
from nginx_server import behind_nginx
from postgres_server import PostgresServer, binaries, free_port
from serve_help import new_model, picture, running, serving, teach
from stranger_pictures import jpeg

from wdae.serve.limits import Limits
from wdae.serve.run import prepare
from wdae.serve.settings import Settings


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_a_decoder_and_the_server_are_killed(tmp_path: Path) -> None:
    found = break_service(tmp_path, 2, postgres=False, clients=2)
    assert found["killed"] == {"decoder": 1, "server": 1}


def test_no_request_made_from_the_description_ends_in_our_error(tmp_path: Path) -> None:
    with serving(Settings(data=tmp_path / "data", limits=Limits(decoders=1))) as client:
        answers, faults = fuzz(client, 60, number=7, quick=True)
    assert faults == []
    assert sum(count for what, count in answers.items() if what.isdigit()) >= 50


@pytest.mark.skipif(not Path("/usr/sbin/nginx").exists(), reason="no nginx: apt-get install nginx-light")
def test_two_servers_behind_a_proxy_are_restarted_one_after_the_other(tmp_path: Path, postgres: str) -> None:
    """With requests under way all the time, not one fails."""
    settings = Settings(data=tmp_path / "data", database=postgres, limits=Limits(decoders=1))
    prepare(settings)
    ports = [free_port(), free_port()]
    end, failed, done = threading.Event(), [], []

    def ask(url: str, number: int) -> None:
        serial = 0
        with httpx.Client(base_url=f"{url}/api/v1", timeout=120) as client:
            model = client.get("/models").json()["items"][0]["id"]
            while not end.is_set():
                serial += 1
                if number:
                    answer = client.get(f"/models/{model}")
                else:
                    data = jpeg(48, 48, seed=serial)
                    answer = client.post(
                        f"/models/{model}/examples",
                        files=[("files", ("a.jpg", data))],
                        data={"class": "okapi"},
                    )
                done.append(answer.status_code)
                if answer.status_code not in (200, 201):
                    failed.append(f"{answer.request.method} {answer.status_code}: {answer.text[:200]}")

    with ExitStack() as first, ExitStack() as second, ExitStack() as later:
        first.enter_context(running(settings, ports[0]))
        second.enter_context(running(settings, ports[1]))
        url = later.enter_context(behind_nginx(tmp_path / "nginx", ports))
        threads = [threading.Thread(target=ask, args=(url, number)) for number in range(2)]
        for thread in threads:
            thread.start()
        for old, port in ((first, ports[0]), (second, ports[1])):
            wanted = len(done) + 10
            while len(done) < wanted:
                time.sleep(0.05)
            old.close()
            later.enter_context(running(settings, port))
        wanted = len(done) + 10
        while len(done) < wanted:
            time.sleep(0.05)
        end.set()
        for thread in threads:
            thread.join()
        client = httpx.Client(base_url=f"{url}/api/v1")
        model = client.get("/models").json()["items"][0]["id"]
        (taught,) = client.get(f"/models/{model}").json()["added"]
    assert failed == [] and done.count(201) == taught["examples"] > 0 and done.count(200) > 10


def test_a_backup_is_a_whole_service(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """The two commands of the guide, taken while somebody teaches: the copy answers as the original did."""
    address = postgres_server.create("backup_from")
    settings = Settings(data=tmp_path / "one", database=address, limits=Limits(decoders=1))
    with serving(settings) as client:
        model = new_model(client)
        teach(client, model, red=[picture(0, i) for i in range(2)], green=[picture(1, i) for i in range(2)])
        before = client.get(model).json(), client.get(f"{model}/history").json()
        # First the database, then the pictures: the copy may have pictures that no row names.
        programs = binaries()
        assert programs is not None
        dump = subprocess.run(
            [programs / "pg_dump", "--format=custom", address], capture_output=True, check=True
        )
        shutil.copytree(tmp_path / "one/pictures", tmp_path / "two/pictures")
        teach(client, model, blue=[picture(2, 0)])
    other = postgres_server.create("backup_to")
    subprocess.run(
        [programs / "pg_restore", "--no-owner", f"--dbname={other}"], input=dump.stdout, check=True
    )
    with serving(Settings(data=tmp_path / "two", database=other, limits=Limits(decoders=1))) as client:
        assert (client.get(model).json(), client.get(f"{model}/history").json()) == before
        asked = client.post(f"{model}/predictions", files={"file": picture(0, 9)}).json()
        assert asked["nearest"][0]["class"] == "red"
        kept = client.get(f"{model}/pictures/{asked['nearest'][0]['picture']}")
        assert kept.status_code == 200


def test_a_backup_of_sqlite_and_a_folder(tmp_path: Path) -> None:
    with serving(Settings(data=tmp_path / "one", limits=Limits(decoders=1))) as client:
        model = new_model(client)
        teach(client, model, red=[picture(0, i) for i in range(2)])
        before = client.get(model).json()
        (tmp_path / "two").mkdir()
        copy = tmp_path / "two/wdae.sqlite"
        with sqlite3.connect(tmp_path / "one/wdae.sqlite") as source, sqlite3.connect(copy) as target:
            source.backup(target)  # what `sqlite3 wdae.sqlite ".backup FILE"` does
        shutil.copytree(tmp_path / "one/pictures", tmp_path / "two/pictures")
        teach(client, model, blue=[picture(2, 0)])
    with serving(Settings(data=tmp_path / "two", limits=Limits(decoders=1))) as client:
        assert client.get(model).json() == before
