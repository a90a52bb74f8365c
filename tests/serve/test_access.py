"""Who may do what: the matrix of routes and roles is made from the app's own routes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import delete

from wdae.errors import RecipeError
from wdae.serve.access import COOKIE, CSRF_HEADER, PUBLIC, refuse_open_door, rules
from wdae.serve.app import create_app
from wdae.serve.database.connection import Database
from wdae.serve.database.tables import KeyRow
from wdae.serve.keys import ROLES, Keys
from wdae.serve.limits import Limits
from wdae.serve.settings import Settings

API = "/api/v1"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A service that others can reach."""
    database = None
    if request.param == "postgres":
        database = request.getfixturevalue("postgres_server").create(f"d{uuid.uuid4().hex}")
    limits = Limits(requests=1000, decoders=1)
    made = Settings(
        data=tmp_path_factory.mktemp("data"), database=database, hosts=("wdae.example",), limits=limits
    )
    migrated(made).close()
    return made


def migrated(settings: Settings) -> Database:
    database = Database(settings.database_url)
    database.migrate()
    return database


@pytest.fixture(scope="module")
def app_client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://wdae.example") as made:
        yield made


@pytest.fixture
def client(app_client: TestClient) -> TestClient:
    """One whom nobody has heard of yet."""
    app_client.cookies.clear()
    app_client.app.state.service.access._limiter.storage.reset()  # type: ignore[attr-defined]
    return app_client


@pytest.fixture
def keys(settings: Settings) -> Iterator[Keys]:
    database = Database(settings.database_url)
    with database.writing() as session:
        session.execute(delete(KeyRow))
    yield Keys(database)
    database.close()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def filled(path: str) -> str:
    for name in ("m", "c", "p", "j", "k", "n"):
        path = path.replace(f"{{{name}}}", "nothing-here")
    assert "{" not in path, f"fill in the parameter of {path} here"
    return path


def test_every_route_and_every_role(client: TestClient, keys: Keys) -> None:
    """Too low a role is 403, none is 401; with enough, what is asked for is not there."""
    texts = {role: keys.create(f"a {role}", role)[1] for role in ROLES}
    found = rules(client.app)  # type: ignore[arg-type]
    assert len(found) > 25
    for (method, path), needed in found.items():
        asked = filled(path)
        assert client.request(method, asked).status_code == 401, (method, path)
        assert client.request(method, asked, headers=bearer("wdae_guess")).status_code in (401, 429), path
        client.app.state.service.access._limiter.storage.reset()  # type: ignore[attr-defined]
        for role in ROLES:
            status = client.request(method, asked, headers=bearer(texts[role])).status_code
            if ROLES.index(role) < ROLES.index(needed):
                assert status == 403, (method, path, role)
            else:
                assert status not in (401, 403, 500), (method, path, role, status)


def test_a_route_without_a_rule_does_not_start() -> None:
    app = FastAPI()
    app.add_api_route("/api/v1/new", lambda: None, methods=["POST"])
    with pytest.raises(LookupError, match="POST /api/v1/new says no role"):
        rules(app)


def test_public_routes_are_few_and_tell_nothing(client: TestClient) -> None:
    assert sorted(path for _, path in PUBLIC) == [f"{API}/session", f"{API}/session", "/health", "/ready"]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get(f"{API}/about").headers["WWW-Authenticate"] == "Bearer"


def test_keys_are_hashed_listed_and_revoked_at_once(
    client: TestClient, keys: Keys, settings: Settings
) -> None:
    _, admin = keys.create("boss", "admin")
    made = client.post(f"{API}/keys", headers=bearer(admin), json={"name": "cam", "role": "teach"}).json()
    with keys.database.reading() as session:
        for row in session.query(KeyRow):
            assert made["key"] not in (row.hash, row.name, row.id) and admin not in (
                row.hash,
                row.name,
                row.id,
            )
    about = client.get(f"{API}/about", headers=bearer(made["key"])).json()
    assert about["me"] == {"name": "cam", "role": "teach"}
    listed = sorted(
        client.get(f"{API}/keys", headers=bearer(admin)).json()["items"], key=lambda one: one["name"]
    )
    assert (
        [one["name"] for one in listed] == ["boss", "cam"]
        and "key" not in listed[1]
        and "hash" not in listed[1]
    )
    assert listed[1]["last_used"]
    assert client.delete(f"{API}/keys/{made['id']}", headers=bearer(admin)).status_code == 204
    assert client.get(f"{API}/about", headers=bearer(made["key"])).status_code == 401
    assert client.delete(f"{API}/keys/nothing", headers=bearer(admin)).status_code == 404
    for bad in (
        {"name": "", "role": "read"},
        {"name": "x", "role": "god"},
        {"name": "a\x1b[31m", "role": "read"},
    ):
        assert client.post(f"{API}/keys", headers=bearer(admin), json=bad).status_code == 422


def test_a_session_of_the_page(client: TestClient, keys: Keys) -> None:
    row, text = keys.create("page", "admin")
    assert client.post(f"{API}/session", json={"key": "wdae_wrong"}).status_code == 401
    begun = client.post(f"{API}/session", json={"key": text})
    cookie = begun.headers["set-cookie"]
    assert begun.status_code == 201
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and text not in cookie
    csrf = client.get(f"{API}/about").json()["csrf"]
    assert csrf == begun.json()["csrf"] and client.cookies[COOKIE] != csrf
    new = {"name": "x", "role": "read"}
    assert client.post(f"{API}/keys", json=new).status_code == 403
    assert client.post(f"{API}/keys", json=new, headers={CSRF_HEADER: "0" * 64}).status_code == 403
    assert client.post(f"{API}/keys", json=new, headers={CSRF_HEADER: csrf}).status_code == 201
    assert client.delete(f"{API}/session").status_code == 403
    token = client.cookies[COOKIE]
    assert client.delete(f"{API}/session", headers={CSRF_HEADER: csrf}).status_code == 204
    client.cookies.set(COOKIE, token)
    assert client.get(f"{API}/about").status_code == 401
    client.cookies.clear()
    client.post(f"{API}/session", json={"key": text})
    keys.revoke(row.id)
    assert client.get(f"{API}/about").status_code == 401


def test_other_names_are_refused(client: TestClient) -> None:
    """A name that was made to point here (DNS rebinding) opens nothing."""
    for host in ("evil.example", "wdae.example.evil.example", "", "wdae.example@evil", "[::", "a b"):
        assert client.get(f"{API}/about", headers={"Host": host}).status_code == 421, host
        assert client.get("/", headers={"Host": host}).status_code == 421, host
    for host in ("wdae.example", "WDAE.example:8000", "127.0.0.1:8000", "[::1]:8000", "localhost"):
        assert client.get("/health", headers={"Host": host}).status_code == 200, host


def test_pages_of_other_sites_change_nothing(client: TestClient, keys: Keys) -> None:
    _, text = keys.create("page", "admin")
    new = {"name": "x", "role": "read"}
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.post(f"{API}/keys", json=new, headers=headers | bearer(text)).status_code == 403
    own = {"Origin": "http://wdae.example", "Sec-Fetch-Site": "same-origin"}
    assert client.post(f"{API}/keys", json=new, headers=own | bearer(text)).status_code == 201
    assert "access-control-allow-origin" not in client.get(f"{API}/about", headers=bearer(text)).headers


def test_guessing_keys_is_slowed_down(client: TestClient) -> None:
    found = [client.get(f"{API}/about", headers=bearer(f"wdae_{i}")).status_code for i in range(25)]
    assert found[:20] == [401] * 20 and found[-1] == 429


def test_requests_a_second_are_bounded(settings: Settings, keys: Keys) -> None:
    _, text = keys.create("busy", "read")
    slow = settings.model_copy(update={"limits": Limits(requests=1, decoders=1)})
    with TestClient(create_app(slow), base_url="http://wdae.example") as client:
        found = [client.get(f"{API}/about", headers=bearer(text)) for _ in range(12)]
    assert [one.status_code for one in found[:10]] == [200] * 10
    assert found[-1].status_code == 429 and int(found[-1].headers["Retry-After"]) >= 1
    assert found[-1].headers["content-type"] == "application/problem+json"


def test_large_requests_are_refused_before_they_are_read(client: TestClient, keys: Keys) -> None:
    _, text = keys.create("big", "admin")
    headers = bearer(text)
    big = b"x" * (2**20 + 1)
    refused = client.post(f"{API}/keys", content=big, headers=headers | {"Content-Type": "application/json"})
    assert refused.status_code == 413 and "at most 1.0 MB" in refused.json()["detail"]

    def drip() -> Iterator[bytes]:  # no length is said
        for _ in range(20):
            yield b" " * 100_000

    refused = client.post(
        f"{API}/keys", content=drip(), headers=headers | {"Content-Type": "application/json"}
    )
    assert refused.status_code == 413


def test_on_this_machine_nobody_needs_a_key(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, limits=Limits(decoders=1))
    migrated(settings).close()
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000") as client:
        assert client.get(f"{API}/about").json()["me"] == {"name": "local", "role": "admin"}
        # What a proxy passes on comes from elsewhere.
        assert client.get(f"{API}/about", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 401
        assert client.get(f"{API}/about", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "place", [{"host": "0.0.0.0"}, {"host": "192.0.2.7"}, {"host": "::"}, {"hosts": ("a.example",)}]
)
def test_others_can_come_in_with_a_key_only(tmp_path: Path, place: dict[str, object]) -> None:
    settings = Settings.model_validate({"data": tmp_path, **place})
    keys = Keys(migrated(settings))
    for public in (0, 1):
        with pytest.raises(RecipeError, match=r"no key yet.*wdae serve keys create.*--public twice"):
            refuse_open_door(settings.model_copy(update={"public": public}), keys)
    refuse_open_door(settings.model_copy(update={"public": 2}), keys)
    keys.create("reader", "read")
    with pytest.raises(RecipeError, match=rf"no key with the role admin yet.*--data {tmp_path}"):
        refuse_open_door(settings, keys)
    row, _ = keys.create("boss", "admin")
    refuse_open_door(settings, keys)
    keys.revoke(row.id)
    with pytest.raises(RecipeError):
        refuse_open_door(settings, keys)
    refuse_open_door(Settings(data=tmp_path), keys)


def test_said_twice_anybody_may_teach_and_nobody_manages(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, host="0.0.0.0", public=2, limits=Limits(decoders=1))
    migrated(settings).close()
    with TestClient(create_app(settings), base_url="http://192.0.2.7") as client:
        assert client.get(f"{API}/about").json()["me"] == {"name": "anybody", "role": "teach"}
        assert client.get(f"{API}/keys").status_code == 403


def test_keys_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wdae.cli.main import main

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["serve", *words, "--data", str(tmp_path / "data")])
        out = capsys.readouterr()
        return f"{end.value.code}\n{out.out}{out.err}"

    refused = said("--host", "0.0.0.0", "--port", "1", "--public")
    assert refused.startswith("2\n") and "--public once is not enough" in refused
    text = said("keys", "create", "--name", "boss", "--role", "admin").splitlines()[-1]
    listed = said("keys", "list")
    assert "admin" in listed and "boss" in listed and text not in listed
    keys = Keys(Database(Settings(data=tmp_path / "data").database_url))
    found = keys.find(text)
    assert found is not None and found.role == "admin"
    assert said("keys", "revoke", found.id).startswith("0\n") and keys.find(text) is None
    assert said("keys", "revoke", "nothing").startswith("2\n")
