"""Small pictures of things that are easily told apart, and a service to show them to."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from wdae.serve.app import API, create_app
from wdae.serve.database.connection import Database
from wdae.serve.settings import Settings


def picture(colour: int, seed: int, kind: str = "PNG", side: int = 120) -> bytes:
    """A picture mostly of one colour (0 red, 1 green, 2 blue), with a block of another in a random place."""
    draw = np.random.default_rng((colour, seed))
    pixels = np.zeros((side, side + 30, 3), np.uint8)
    pixels[..., colour] = 200
    top, left = draw.integers(side // 6, side // 2, 2)
    pixels[top : top + side // 3, left : left + side // 3, (colour + 1) % 3] = draw.integers(60, 255)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def upload(**classes: list[bytes]) -> dict[str, Any]:
    """Keyword arguments of a request that teaches these pictures."""
    named = [(name, f"{name}-{i}.png", data) for name, some in classes.items() for i, data in enumerate(some)]
    return {
        "files": [("files", (file, data)) for _, file, data in named],
        "data": {"classes": [name for name, _, _ in named]},
    }


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A client of a service, whose paths are those below /api/v1."""
    database = Database(settings.database_url)
    database.migrate()
    database.close()
    with TestClient(create_app(settings), base_url=f"http://localhost{API}") as client:
        yield client


def new_model(client: TestClient, name: str = "mine") -> str:
    """The path of a new model."""
    made = client.post("models", json={"name": name})
    assert made.status_code == 201, made.text
    return f"models/{made.json()['id']}"


def teach(client: TestClient, model: str, **classes: list[bytes]) -> dict[str, Any]:
    """What the service says to pictures of classes."""
    taught = client.post(f"{model}/examples", **upload(**classes))
    assert taught.status_code == (201 if taught.json().get("added") else 200), taught.text
    found: dict[str, Any] = taught.json()
    return found


@contextmanager
def running(settings: Settings, port: int = 0) -> Iterator[str]:
    """The address of a service that a real server runs in a thread of this process."""
    database = Database(settings.database_url)
    database.migrate()
    database.close()
    config = uvicorn.Config(create_app(settings), port=port, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < until
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join(30)
